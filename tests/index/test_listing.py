"""Lists are complete, and the same with an index and without one.
Method: documents written by hand to a real server, an index in the test's own loop, and clients
that list while others write."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from tests.client.stage import Stage, chain, open_stage

from treadle.engine.index import serving
from treadle.engine.index.serving import RunIndex
from treadle.engine.topology import ensure_topology
from treadle.sdk.children import ParentRun
from treadle.sdk.client import RunPage, listing
from treadle.sdk.errors import InvalidPayload, UserError
from treadle.sdk.messages import RunRequested
from treadle.sdk.settings import Settings

MANY = 300
PATIENCE_S = 40
NEVER_S = 1_000.0
Story = Callable[[Stage], Awaitable[None]]


def play(settings: Settings, story: Story) -> None:
    async def on_stage() -> None:
        async with asyncio.timeout(50), open_stage(settings) as stage:
            await story(stage)

    asyncio.run(on_stage())


@asynccontextmanager
async def indexed(stage: Stage) -> AsyncGenerator[None]:
    """Keep an index while the block runs, and wait until it answers."""

    async def is_first() -> bool:
        return True

    async def keep() -> None:
        while True:
            await RunIndex(stage.js, stage.subjects, is_first=is_first).run()

    task = asyncio.create_task(keep())
    try:
        await answering(stage)
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def answering(stage: Stage) -> None:
    """Wait until an index answers."""
    async with asyncio.timeout(PATIENCE_S):
        while (await stage.client.list_runs(limit=1)).scanned:
            await asyncio.sleep(0.02)


async def _write_some(stage: Stage) -> None:
    """Runs of two workflows, some damaged, deleted or only requested."""
    for n in range(20):
        await stage.document(
            f"r{n:02}",
            workflow="flow" if n % 3 else "other",
            status=("running", "completed", "failed")[n % 3],
            requested_ms=1_000 + n // 2,
            ended_ms=5_000,
            lane="l" if n == 4 else "",
            parent=ParentRun(run="r01", step="s", root="r01") if n in (4, 9) else None,
            metadata={"customer": f"c{n % 4}", "amount": n, "paid": n % 2 == 0},
        )
    await stage.document("q1", status="queued", lane="m", requested=7, requested_ms=1_002)
    await stage.document("q2", status="queued", lane="m", requested=8, requested_ms=1_003)
    await stage.document("h", status="running", lane="m", requested=6, requested_ms=1_001)
    s = stage.subjects
    await stage.js.store(s.run_document("ghost"), b"\xff")
    await stage.js.store(s.run_document("a.b"), b"{}")
    await stage.js.store(s.run_document("r19"), b"")
    await stage.event(
        "new", RunRequested(workflow="flow", definition="", metadata={"customer": "c1"})
    )


QUESTIONS: list[dict[str, Any]] = [
    {},
    {"workflow": "flow"},
    {"status": "completed"},
    {"status": ["requested", "failed", "unreadable"]},
    {"where": {"customer": "c1"}},
    {"where": {"customer": ["c1", "c2"], "amount": (">=", 6), "paid": True}},
    {"where": {"amount": ("<", 3.5)}},
    {"where": {"amount": "3"}},
    {"requested_after": datetime.fromtimestamp(1.004, UTC)},
    {"requested_before": datetime.fromtimestamp(1.004, UTC), "workflow": "other"},
    {"lane": "m"},
    {"parent": "r01"},
    {"parent": "r01", "workflow": "other"},
    {"parent": "r02"},
]


async def _pages(stage: Stage, size: int, **wanted: Any) -> list[RunPage]:
    pages = [await stage.client.list_runs(limit=size, **wanted)]
    while pages[-1].cursor is not None:
        pages.append(await stage.client.list_runs(limit=size, cursor=pages[-1].cursor, **wanted))
    return pages


def test_an_index_and_a_scan_give_the_same_pages_and_counts(settings: Settings) -> None:
    async def answers(stage: Stage, *, by_index: bool) -> list[Any]:
        found: list[Any] = []
        for wanted in QUESTIONS:
            whole = await stage.client.list_runs(**wanted)
            counts = await stage.client.count_runs(**wanted)
            pages = await _pages(stage, 3, **wanted)
            assert [view for page in pages for view in page.runs] == list(whole.runs)
            assert all(bool(page.scanned) != by_index for page in (whole, counts, *pages))
            assert counts.total == len(whole.runs) == sum(counts.by_status.values())
            found.append((whole.runs, counts.by_status))
        return found

    async def story(stage: Stage) -> None:
        await _write_some(stage)
        scanned = await answers(stage, by_index=False)
        async with indexed(stage):
            assert await answers(stage, by_index=True) == scanned
        everything = {view.id for view in scanned[0][0]}
        of_parents = [{view.id for view in runs} for runs, _ in scanned[-3:]]
        assert of_parents == [{"r04", "r09"}, {"r09"}, set()]
        assert {"new", "ghost", "a.b", "q1", "r00"} < everything and "r19" not in everything
        ahead = {view.id: view.ahead for view in scanned[0][0] if view.ahead}
        assert {run: (each.count, each.holder) for run, each in ahead.items()} == {
            "q1": (1, "h"),
            "q2": (2, "h"),
        }
        assert [len(runs) for runs, _ in scanned] == [25, 16, 6, 9, 6, 4, 4, 0, 14, 3, 3, 2, 1, 0]

    play(settings, story)


def test_what_was_stored_a_moment_ago_is_found(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LOOK_S", NEVER_S)

    async def story(stage: Stage) -> None:
        await stage.document("old", metadata={"n": 0})
        async with indexed(stage):
            for n in range(30):
                await stage.document("old", metadata={"n": n})
                await stage.document(f"r{n}", status="completed", metadata={"n": n})
                page = await stage.client.list_runs(status="completed", where={"n": n})
                assert ([view.id for view in page.runs], page.scanned) == ([f"r{n}"], 0)
            # The newest message is a run that has gone: nothing comes behind what was read.
            await stage.js.purge(stage.subjects.runs_stream, stage.subjects.run_document("r29"))
            page = await stage.client.list_runs(where={"n": 29})
            assert ([view.id for view in page.runs], page.scanned) == (["old"], 0)

    play(settings, story)


@pytest.mark.parametrize("by_index", [True, False])
def test_no_run_is_missing_or_twice_while_documents_are_rewritten(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, by_index: bool
) -> None:
    monkeypatch.setattr(serving, "COMPARE_S", 0.0)
    monkeypatch.setattr(serving, "LOOK_S", 0.001)

    async def story(stage: Stage) -> None:
        names = [f"r{n:03}" for n in range(MANY)]
        await asyncio.gather(*(stage.document(name, metadata={"k": 1}) for name in names))

        async def rewrite() -> None:
            while True:
                for name in names:
                    await stage.document(name, status="parked", metadata={"k": 1})

        async def look() -> None:
            for _ in range(10):
                page = await stage.client.list_runs(limit=10 * MANY, where={"k": 1})
                assert sorted(view.id for view in page.runs) == names
                counts = await stage.client.count_runs()
                assert counts.total == MANY and bool(counts.scanned) != by_index

        writing = asyncio.create_task(rewrite())
        try:
            if by_index:
                async with indexed(stage):
                    await look()
            else:
                await look()
        finally:
            writing.cancel()
            await asyncio.gather(writing, return_exceptions=True)

    play(settings, story)


def test_runs_that_are_gone_are_not_listed_and_soon_not_counted(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "COMPARE_S", 0.0)
    monkeypatch.setattr(serving, "LOOK_S", 0.01)

    async def story(stage: Stage) -> None:
        s = stage.subjects
        names = [f"r{n:03}" for n in range(MANY)]
        for n, name in enumerate(names):
            await stage.document(name, requested_ms=1_000 + n)
        async with indexed(stage):
            gone = {*names[:50], names[200], names[-1]}
            for name in gone:
                await stage.js.purge(s.runs_stream, s.run_document(name))
            page = await stage.client.list_runs(limit=100)
            assert not gone & {view.id for view in page.runs} and len(page.runs) == 100
            async with asyncio.timeout(PATIENCE_S):
                while (await stage.client.count_runs()).total != MANY - len(gone):
                    await asyncio.sleep(0.02)
            # An id that is used again is a new run.
            await stage.document(names[0], workflow="again", requested_ms=9_000)
            page = await stage.client.list_runs(limit=1)
            assert [(view.id, view.workflow) for view in page.runs] == [(names[0], "again")]
            assert page.scanned == 0

    play(settings, story)


@pytest.mark.slow
def test_a_bucket_that_begins_anew_is_read_anew(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "COMPARE_S", 0.0)
    monkeypatch.setattr(serving, "LOOK_S", 0.01)

    async def story(stage: Stage) -> None:
        for n in range(20):
            await stage.document(f"r{n}")
        async with indexed(stage):
            await stage.js.api(f"STREAM.DELETE.{stage.subjects.runs_stream}")
            await ensure_topology(stage.js, settings)
            await stage.document("first")
            async with asyncio.timeout(PATIENCE_S):
                while (counts := await stage.client.count_runs()).total != 1 or counts.scanned:
                    await asyncio.sleep(0.02)
            page = await stage.client.list_runs()
            assert [view.id for view in page.runs] == ["first"]

    play(settings, story)


def test_an_index_that_does_not_answer_costs_a_wait_and_no_run(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "ANSWER_S", 0.2)

    async def story(stage: Stage) -> None:
        asked: list[bytes] = []
        await _write_some(stage)
        connection = stage.js.connection
        mute = await connection.subscribe(stage.subjects.index, lambda m: asked.append(m.data))
        page = await stage.client.list_runs()
        assert len(page.runs) == 25 and page.scanned == 25 and len(asked) == 1
        await mute.unsubscribe()

        def lie(message: Any) -> None:
            connection.publish(message.reply, b'{"position":1,"runs":[["nobody",5]]}')

        late = await connection.subscribe(stage.subjects.index, lie)
        assert (await stage.client.list_runs()) == page
        await late.unsubscribe()
        async with indexed(stage):
            for garbage in (b"", b"\xff", b"{", b'{"limit":"x"}', b'{"at_least":99999999999}'):
                connection.publish(stage.subjects.index, garbage)
            assert (await stage.client.list_runs()).runs == page.runs

    play(settings, story)


def test_what_no_run_can_be_is_refused(settings: Settings) -> None:
    refused: list[tuple[dict[str, Any], str]] = [
        ({"status": "done"}, "'done' is no status of a run. Choose one of requested, scheduled"),
        ({"status": ["failed", ""]}, "'' is no status"),
        ({"where": {"a": []}}, "empty list"),
        ({"where": {"a": ("!", 1)}}, "no comparison"),
        ({"where": {"a": None}}, "texts, numbers, bools and times"),
        ({"where": {"a": (">", datetime(2026, 1, 1))}}, "no time zone"),
        ({"where": {"a": float("nan")}}, "no number"),
        ({"where": {str(n): n for n in range(21)}}, "21 conditions"),
        ({"requested_after": datetime(2026, 1, 1)}, "no time zone"),
        ({"cursor": "x"}, "no cursor"),
        ({"workflow": "a.b"}, "workflow name"),
        ({"parent": "a.b"}, "run id"),
    ]

    async def story(stage: Stage) -> None:
        for wanted, words in refused:
            with pytest.raises((UserError, InvalidPayload), match=words.replace(".", r"\.")):
                await stage.client.list_runs(**wanted)

    play(settings, story)


def test_times_are_compared_as_times(settings: Settings) -> None:
    async def story(stage: Stage) -> None:
        client = stage.client
        at = datetime(2026, 3, 1, 12, tzinfo=UTC)
        await client.register(chain())
        for hours in range(4):
            due = (at + timedelta(hours=hours)).astimezone()
            await client.start("flow", id=f"r{hours}", metadata={"due": due})
        page = await client.list_runs(where={"due": (">=", at + timedelta(hours=2))})
        assert {view.id for view in page.runs} == {"r2", "r3"}
        same = await client.list_runs(where={"due": at})
        assert [view.metadata["due"] for view in same.runs] == ["2026-03-01T12:00:00.000000Z"]

    play(settings, story)
