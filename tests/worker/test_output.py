"""What handlers say is stored in order, joined, before their verdict, and never in their way.

A worker on a real server; the test plays the engine, and reads the output stream itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec
import pytest
from tests.worker.stage import Stage, loop_task, open_stage, task, until, until_true

from treadle.engine.topology import output_bounds, stream_configs
from treadle.sdk import InvalidPayload, chunks
from treadle.sdk.chunks import AttemptBegan, Chunk, Dropped, Progress, Superseded, Text
from treadle.sdk.messages import StepCompleted, StepContinued, StepFailed
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, SyncTaskContext, TaskContext, Worker, output

Story = Callable[[Stage], Awaitable[None]]


async def make_stream(stage: Stage, **changes: object) -> None:
    (config,) = [
        each
        for each in stream_configs(stage.subjects, 1)
        if each["name"] == stage.subjects.output_stream
    ]
    await stage.js.ensure_stream({**config, **changes}, initial=output_bounds(3600))


async def said(stage: Stage, run: str = "r1") -> list[Chunk]:
    stream, subject = stage.subjects.output_stream, stage.subjects.output_of_run(run)
    return [chunks.decode(stored.data) async for stored in stage.js.read(stream, subject)]


def text(found: list[Chunk]) -> str:
    return "".join(chunk.text for chunk in found if isinstance(chunk, Text))


def play(settings: Settings, story: Story, *, has_stream: bool = True) -> None:
    async def on_stage() -> None:
        async with open_stage(settings) as stage:
            if has_stream:
                await make_stream(stage)
            await story(stage)

    asyncio.run(on_stage())


def test_what_is_written_is_joined_in_order_and_stored_before_the_verdict(
    settings: Settings,
) -> None:
    worker = Worker()
    words = [f"{n} " for n in range(2_000)]

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        for word in words[:1_000]:
            ctx.write(word)
        ctx.report({"done": 0.5})
        for word in words[1_000:]:
            ctx.write(word)
            if word.endswith("00 "):
                await asyncio.sleep(0)
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)
            found = await said(stage)
            assert text(found) == "".join(words)
            assert isinstance(found[0], AttemptBegan) and found[0].worker
            (report,) = [chunk for chunk in found if isinstance(chunk, Progress)]
            assert bytes(report.value) == b'{"done":0.5}'
            assert text(found[: found.index(report)]) == "".join(words[:1_000])
            numbers = [chunk.n for chunk in found]
            assert numbers == sorted(set(numbers))
            assert {(chunk.iteration, chunk.attempt) for chunk in found} == {(0, 1)}
            assert len(found) < 12, "joined"

    play(settings, story)


def test_a_handler_that_says_nothing_stores_nothing(settings: Settings) -> None:
    """The hot path of a loop is as it was, also over retries."""
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: LoopContext[int]) -> object:
        if ctx.attempt == 1 and ctx.iteration == 3:
            raise ValueError("once")
        return ctx.continue_(ctx.input)

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            for n in range(5):
                await stage.put(loop_task(n, iteration=n, attempt=1))
                await stage.event(StepFailed if n == 3 else StepContinued, n=n + 1)
            await stage.put(loop_task(3, iteration=3, attempt=2))
            await stage.event(StepContinued, n=6)
        info = await stage.js.api(f"STREAM.INFO.{stage.subjects.output_stream}")
        assert info["state"]["last_seq"] == 0

    play(settings, story)


def test_small_texts_wait_for_each_other(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "JOIN_S", 30)
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        for word in ("a", "b", "c"):
            ctx.write(word)
            await ctx.checkpoint(word)  # A round trip: long enough to have stored it.
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)
            assert [chunk.text for chunk in await said(stage) if isinstance(chunk, Text)] == ["abc"]

    play(settings, story)


def test_a_small_text_is_readable_while_the_handler_goes_on(settings: Settings) -> None:
    worker = Worker()
    goes_on = asyncio.Event()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.write("soon")
        await goes_on.wait()
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await until(lambda: said(stage), lambda found: text(found) == "soon")
            goes_on.set()
            await stage.event(StepCompleted)

    play(settings, story)


def test_a_plain_function_and_threads_speak_in_their_order(settings: Settings) -> None:
    worker = Worker()

    @worker.handler("work")
    def work(ctx: SyncTaskContext[None]) -> str:
        for n in range(500):
            ctx.write(f"{n} ")
        ctx.report("done")
        return "end"

    @worker.handler("threads")
    async def threads(ctx: TaskContext[None]) -> str:
        ctx.write("a")
        await asyncio.to_thread(ctx.write, "b")
        ctx.write("c")
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)
            found = await said(stage)
            assert text(found) == "".join(f"{n} " for n in range(500))
            assert isinstance(found[-1], Progress)
            await stage.put(task(), run="r2", type_="threads")
            await stage.event(StepCompleted, run="r2")
            assert text(await said(stage, "r2")) == "abc"

    play(settings, story)


def test_a_later_attempt_first_takes_back_what_the_earlier_one_has_said(
    settings: Settings,
) -> None:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.write(f"attempt {ctx.attempt}")
        if ctx.attempt == 1:
            raise ValueError("once")
        return "end"

    @worker.handler("quiet")
    async def quiet(ctx: TaskContext[None]) -> str:
        if ctx.attempt == 1:
            ctx.write("never meant")
            raise ValueError("once")
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            for run, type_ in (("r1", "work"), ("r2", "quiet")):
                await stage.put(task(), run=run, type_=type_)
                await stage.event(StepFailed, run=run)
                await stage.put(task(attempt=2), run=run, type_=type_)
                await stage.event(StepCompleted, run=run, n=2)
            kinds = [(type(chunk), chunk.attempt) for chunk in await said(stage)]
            assert kinds == [
                (AttemptBegan, 1),
                (Text, 1),
                (Superseded, 2),
                (AttemptBegan, 2),
                (Text, 2),
            ]
            # It has nothing to say but that.
            assert isinstance((await said(stage, "r2"))[-1], Superseded)

    play(settings, story)


def test_words_of_an_earlier_iteration_are_not_taken_back(settings: Settings) -> None:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: LoopContext[None]) -> object:
        if ctx.iteration == 0:
            ctx.write("kept")
        return ctx.continue_()

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(loop_task())
            await stage.event(StepContinued)
            await stage.put(loop_task(iteration=1, attempt=2))
            await stage.event(StepContinued, n=2)
            assert [type(chunk) for chunk in await said(stage)] == [AttemptBegan, Text]

    play(settings, story)


@pytest.mark.parametrize("obstacle", ["missing", "full"])
def test_a_stream_that_takes_nothing_is_logged_once_and_fails_no_step(
    settings: Settings,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    obstacle: str,
) -> None:
    monkeypatch.setattr(output, "FLUSH_S", 0.5)
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[int]) -> int:
        ctx.write("nobody hears")
        return ctx.input

    async def story(stage: Stage) -> None:
        if obstacle == "full":
            await make_stream(stage, discard="new", max_msgs=1)
            await stage.js.store(stage.subjects.output("r0", "s"), b"{}")
        async with stage.running(worker):
            for n in range(1, 5):
                await stage.put(task(n, attempt=1 + n % 2))
                completed = await stage.event(StepCompleted, n=n)
                assert bytes(completed.output) == b"%d" % n
            logged = [r for r in caplog.records if "output-not-stored" in r.message]
            assert len(logged) == 1
            assert "runs go on" in logged[0].message and "doctor" in logged[0].message
            # It is noticed when there is room again.
            if obstacle == "missing":
                await make_stream(stage)
            else:
                await stage.js.purge(stage.subjects.output_stream, stage.subjects.all_output)
                edit = {"max_msgs": 100}
                await stage.js.edit_stream(stage.subjects.output_stream, edit)
            await stage.put(task(5))
            await stage.event(StepCompleted, n=5)
            assert text(await said(stage)) == "nobody hears"

    with caplog.at_level(logging.WARNING):
        play(settings, story, has_stream=False)


def test_what_is_said_while_the_server_restarts_is_stored_once_it_is_back(
    own_server: NatsServer, namespace: str
) -> None:
    worker = Worker()
    says, has_said = asyncio.Queue[str](), asyncio.Queue[str]()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        while word := await says.get():
            ctx.write(word)
            ctx.report(word)
            has_said.put_nowait(word)
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            says.put_nowait("before ")
            await until(lambda: said(stage), lambda found: text(found) == "before ")
            await asyncio.to_thread(own_server.kill)
            says.put_nowait("meanwhile ")
            await has_said.get(), await has_said.get()
            await asyncio.to_thread(own_server.restart)
            says.put_nowait("after")
            await has_said.get()
            says.put_nowait("")
            await stage.event(StepCompleted)
            # Stored twice at most, which the numbers tell.
            found = list({chunk.n: chunk for chunk in await said(stage)}.values())
            assert text(found) == "before meanwhile after"
            reports = [bytes(chunk.value) for chunk in found if isinstance(chunk, Progress)]
            assert reports == [b'"before "', b'"meanwhile "', b'"after"']

    play(Settings(url=own_server.url, namespace=namespace), story)


def test_a_torrent_keeps_to_its_memory_and_says_what_was_lost(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "QUEUE_CHARS_MAX", 10_000)
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        for _ in range(50):
            ctx.write("x" * 1_000)  # It never gives the loop a chance.
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)
            found = await said(stage)
            lost = sum(chunk.count for chunk in found if isinstance(chunk, Dropped))
            assert 0 < len(text(found)) <= 10_000
            assert len(text(found)) + lost * 1_000 == 50_000

    play(settings, story)


def test_one_huge_text_is_stored_in_pieces_that_the_stream_takes(settings: Settings) -> None:
    worker = Worker()
    huge = "\x00é\U0001f600" * 100_000 + "\ud800"

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.write(huge)
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)
            assert text(await said(stage)) == huge[:-1] + "?"

    play(settings, story)


def test_a_report_that_is_no_json_or_too_large_is_an_error_of_the_handler(
    settings: Settings,
) -> None:
    worker = Worker()
    errors: list[str] = []

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        for value in (object(), "x" * 40_000):
            with pytest.raises(InvalidPayload) as refused:
                ctx.report(value)
            errors.append(str(refused.value))
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)

    play(settings, story)
    assert all("report of step 's'" in error for error in errors) and len(errors) == 2
    assert "at most 32768 are shown" in errors[1]


def test_a_context_that_has_ended_says_nothing_more(settings: Settings) -> None:
    worker = Worker()
    kept: list[TaskContext[None]] = []

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.write("in time")
        kept.append(ctx)
        return "end"

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)
            await stage.until_acked()
            kept[0].write("too late")
            kept[0].report("too late")
            await stage.put(task(), run="r2")
            await stage.event(StepCompleted, run="r2")
            assert text(await said(stage)) == "in time"

    play(settings, story)


def test_a_handler_that_is_cancelled_stops_as_soon_as_one_that_is_silent(
    settings: Settings,
) -> None:
    worker = Worker()
    ended = asyncio.Event()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        try:
            while True:
                ctx.write("talk ")
                await asyncio.sleep(0.001)
        finally:
            ended.set()

    async def story(stage: Stage) -> None:
        async with stage.running(worker):
            await stage.put(task())
            await until(lambda: said(stage), lambda found: len(found) > 1)
            await stage.cancel()
            await until_true(ended.is_set, timeout_s=1)
        assert not await stage.events()

    play(settings, story)


def test_chunks_are_stored_as_short_json() -> None:
    chunk = Text(iteration=3, attempt=2, n=7, text="hé")
    raw = chunks.encode(chunk)
    assert raw.decode() == '{"kind":"text","iteration":3,"attempt":2,"n":7,"text":"hé"}'
    assert chunks.decode(raw) == chunk
    assert chunks.encode(Text(text="x")) == b'{"kind":"text","text":"x"}'
    # What one version has stored, the next one reads: names and tags never change.
    assert msgspec.json.decode(raw, type=Chunk) == chunk
