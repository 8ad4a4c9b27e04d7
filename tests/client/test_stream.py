"""Reading what a run says: from any sequence, while it runs or afterwards, over restarts.

A real server and the client; chunks and documents are written by hand, as workers and engines do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.client.stage import Stage, chain, play
from tests.conftest import Eventually

from treadle.sdk import ServerUnsuitable, UnknownRun, UserError, chunks
from treadle.sdk.bus.jetstream import Stored
from treadle.sdk.chunks import Chunk, Text
from treadle.sdk.client import StreamItem
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

WITHIN_S = 15


async def _begin(stage: Stage, run: str = "r1") -> str:
    version = await stage.client.register(chain())
    await stage.document(run, definition=version)
    return version


async def _end(stage: Stage, version: str, run: str = "r1") -> None:
    await stage.document(run, definition=version, status="completed", ended_ms=2_000)


async def _says(stage: Stage, chunk: Chunk, step: str = "loop", run: str = "r1") -> int:
    return await stage.js.store(stage.subjects.output(run, step), chunks.encode(chunk))


async def _talks(stage: Stage, first: int, last: int) -> list[int]:
    return [await _says(stage, Text(n=n, text=f"{n} ")) for n in range(first, last)]


def texts(items: list[StreamItem]) -> str:
    return "".join(item.chunk.text for item in items if isinstance(item.chunk, Text))


async def _all(items: AsyncIterator[StreamItem]) -> list[StreamItem]:
    async with asyncio.timeout(WITHIN_S):
        return [item async for item in items]


def test_a_reader_gets_what_was_said_before_it_came_and_all_until_the_end(
    settings: Settings, eventually: Eventually
) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        await _says(stage, Text(text="another run"), run="r2")
        before = await _talks(stage, 0, 3)
        seen: list[StreamItem] = []

        async def read() -> None:
            async for item in stage.client.stream("r1"):
                seen.append(item)

        reading = asyncio.create_task(read())
        await eventually(lambda: len(seen) == 3)
        for n in range(3, 8):
            await _talks(stage, n, n + 1)
            await eventually(lambda: len(seen) == n + 1)  # noqa: B023 — awaited in the turn.
        # The last words are stored together with the end, and are not lost to it.
        await _talks(stage, 8, 10)
        await _end(stage, version)
        async with asyncio.timeout(WITHIN_S):
            await reading
        assert texts(seen) == "0 1 2 3 4 5 6 7 8 9 "
        assert [item.sequence for item in seen[:3]] == before
        assert {item.step for item in seen} == {"loop"} and seen[0].time_ms > 0
        assert await _all(stage.client.stream("r1")) == seen

    play(settings, story)


def test_a_reader_that_reconnects_goes_on_exactly_where_it_was(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        await _talks(stage, 0, 600)  # More than one reading brings.
        await _end(stage, version)
        whole = await _all(stage.client.stream("r1"))
        assert len(whole) == 600
        for cut in (0, 1, 255, 256, 257, 599, 600):
            after = whole[cut - 1].sequence if cut else 0
            assert await _all(stage.client.stream("r1", after=after)) == whole[cut:]
        beyond = whole[-1].sequence + 10
        assert await _all(stage.client.stream("r1", after=beyond)) == []

    play(settings, story)


def test_one_step_can_be_read_alone(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        await _says(stage, Text(text="one"), step="first")
        await _says(stage, Text(text="two"), step="loop")
        await _end(stage, version)
        assert texts(await _all(stage.client.stream("r1", step="loop"))) == "two"
        assert texts(await _all(stage.client.handle("r1").stream())) == "onetwo"
        with pytest.raises(UserError, match=r"has no step 'lop'.*'first', 'loop'"):
            await _all(stage.client.stream("r1", step="lop"))

    play(settings, story)


def test_without_following_it_ends_with_what_is_stored(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await _begin(stage)
        await _talks(stage, 0, 2)
        assert texts(await _all(stage.client.stream("r1", follow=False))) == "0 1 "
        assert await _all(stage.client.stream("r1", step="first", follow=False)) == []

    play(settings, story)


def test_a_run_that_says_nothing_ends_its_stream_with_its_end(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        reading = asyncio.create_task(_all(stage.client.stream("r1")))
        await asyncio.sleep(0)
        await _end(stage, version)
        assert await reading == []

    play(settings, story)


def test_a_slow_reader_misses_nothing(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        items = stage.client.stream("r1")
        seen: list[StreamItem] = []
        said = 0
        # It takes one item, while another three hundred are said; the run ends long before it.
        for _ in range(4):
            await _talks(stage, said, said + 300)
            said += 300
            seen.append(await asyncio.wait_for(anext(items), WITHIN_S))
        await _end(stage, version)
        seen += await _all(items)
        assert [item.chunk.n for item in seen] == list(range(said))

    play(settings, story)


def test_a_reader_survives_restarts_of_the_server(own_server: NatsServer, namespace: str) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        seen: list[StreamItem] = []

        async def read() -> None:
            async for item in stage.client.stream("r1"):
                seen.append(item)

        reading = asyncio.create_task(read())
        for part in range(3):
            await _talks(stage, part * 10, part * 10 + 10)
            await asyncio.to_thread(own_server.kill)
            await asyncio.to_thread(own_server.restart)
        await _talks(stage, 30, 40)
        await _end(stage, version)
        async with asyncio.timeout(WITHIN_S):
            await reading
        assert list(dict.fromkeys(item.chunk.n for item in seen)) == list(range(40))
        sequences = [item.sequence for item in seen]
        assert sequences == sorted(set(sequences))

    play(Settings(url=own_server.url, namespace=namespace), story)


def test_what_is_no_chunk_or_of_a_later_version_is_shown_as_unknown(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        subject = stage.subjects.output("r1", "loop")
        await stage.js.store(subject, b"\xff{no json")
        await stage.js.store(subject, b'{"kind":"picture","iteration":2,"n":7,"url":"x"}')
        await _says(stage, Text(text="read on"))
        await _end(stage, version)
        first, second, third = await _all(stage.client.stream("r1"))
        assert first.chunk == chunks.Unknown(iteration=-1, attempt=0, bytes=9)
        assert second.chunk == chunks.Unknown(iteration=2, n=7, bytes=48)
        assert texts([third]) == "read on"

    play(settings, story)


def test_what_cannot_be_read_is_refused_with_the_reason(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        with pytest.raises(UnknownRun):
            await _all(stage.client.stream("nobody"))
        await _begin(stage)
        with pytest.raises(UserError, match=r"after is -1.*Pass the `sequence`"):
            await _all(stage.client.stream("r1", after=-1))
        await stage.js.api(f"STREAM.DELETE.{stage.subjects.output_stream}")
        with pytest.raises(ServerUnsuitable, match=r"_STREAM' does not exist.*`treadle engine`"):
            await _all(stage.client.stream("r1"))

    play(settings, story)


def test_a_reader_ends_when_the_run_is_deleted(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        await _begin(stage)
        await _talks(stage, 0, 2)
        items = stage.client.stream("r1")
        first = await anext(items)
        s = stage.subjects
        await stage.js.purge(s.output_stream, s.output_of_run("r1"))
        await stage.js.purge(s.runs_stream, s.run_document("r1"))
        rest = await _all(items)
        assert texts([first, *rest]) == "0 1 "

    play(settings, story)


def _counted(connection: Any, name: str, counts: dict[str, int]) -> Any:
    call = getattr(connection, name)

    def counted(*given: Any, **more: Any) -> Any:
        counts[name] += 1
        return call(*given, **more)

    return counted


def test_the_last_words_are_waited_for_where_a_replica_is_behind(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        await _talks(stage, 0, 3)
        await _end(stage, version)
        js = stage.client._store.js  # pyright: ignore[reportPrivateUsage]
        read, readings = js.read, 0

        async def behind(*given: Any, **more: Any) -> AsyncIterator[Stored]:
            nonlocal readings
            readings += 1
            found = [stored async for stored in read(*given, **more)]
            for stored in found[:-1] if readings == 1 else found:
                yield stored

        monkeypatch.setattr(js, "read", behind)
        assert texts(await _all(stage.client.stream("r1"))) == "0 1 2 "
        assert readings > 1

    play(settings, story)


def test_readers_cost_little_while_nothing_changes_but_the_output(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        version = await _begin(stage)
        connection = stage.client._store.js.connection  # pyright: ignore[reportPrivateUsage]
        counts = {"send_request": 0, "request_many": 0}
        for name in counts:
            monkeypatch.setattr(connection, name, _counted(connection, name, counts))
        seen: list[StreamItem] = []

        async def read() -> None:
            async for item in stage.client.stream("r1"):
                seen.append(item)

        reading = asyncio.create_task(read())
        async with asyncio.timeout(WITHIN_S):
            for n in range(20):
                await _talks(stage, n, n + 1)
                while len(seen) <= n:
                    await asyncio.sleep(0.002)
                await asyncio.sleep(0.03)
        asked = dict(counts)
        await _end(stage, version)
        await reading
        # Single requests are looks at the run's document; readings are for chunks.
        assert asked["send_request"] <= 20 and asked["request_many"] <= 80, asked

    play(settings, story)
