"""What handlers log is on the run's output stream, bounded, and whatever else logged goes on.
Method: a worker on a real server, whose output stream the test reads."""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Awaitable, Callable

import pytest
from tests.worker.stage import Stage, loop_task, open_stage, task
from tests.worker.test_output import make_stream, said

from treadle.sdk.chunks import Logged
from treadle.sdk.errors import HandlerError
from treadle.sdk.messages import StepCompleted, StepFailed
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, SyncTaskContext, TaskContext, Worker, capture

Play = Callable[[Worker, Callable[[Stage], Awaitable[None]]], list[Logged]]


@pytest.fixture
def play(settings: Settings, caplog: pytest.LogCaptureFixture) -> Play:
    """Run a worker over a story; return what was captured of run r1."""
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.INFO, "treadle")

    def play(worker: Worker, story: Callable[[Stage], Awaitable[None]]) -> list[Logged]:
        async def on_stage() -> list[Logged]:
            async with open_stage(settings) as stage:
                await make_stream(stage)
                async with stage.running(worker):
                    await story(stage)
                return [chunk for chunk in await said(stage) if isinstance(chunk, Logged)]

        return asyncio.run(on_stage())

    return play


async def one_task(stage: Stage) -> None:
    await stage.put(task())
    await stage.event(StepCompleted)


def test_what_the_context_logs_is_captured_whole_and_of_other_loggers_the_warnings(
    play: Play,
) -> None:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.logger.info("page %d of %d", 1, 3, extra={"url": "http://a", "size": 7})
        logging.getLogger("library").info("a detail")
        logging.getLogger("library").warning("slow")
        try:
            raise OSError("gone")
        except OSError:
            ctx.logger.exception("no luck")
        return "end"

    info, slow, failed = play(worker, one_task)
    assert (info.level, info.logger, info.text) == ("info", "treadle.handler", "page 1 of 3")
    assert info.fields == {"url": "http://a", "size": 7} and info.time_ms > 0
    assert (slow.level, slow.logger, slow.text) == ("warning", "library", "slow")
    assert failed.level == "error" and failed.traceback.endswith("OSError: gone")


def test_a_plain_handler_and_what_it_starts_through_asyncio_are_captured(play: Play) -> None:
    worker = Worker()

    @worker.handler("work")
    def work(ctx: SyncTaskContext[None]) -> str:
        ctx.logger.info("in a thread")

        async def inner() -> None:
            await asyncio.to_thread(logging.getLogger("library").error, "below")

        asyncio.run(inner())
        return "end"

    assert [line.text for line in play(worker, one_task)] == ["in a thread", "below"]


def test_lines_name_their_attempt_and_what_the_worker_logs_of_it_is_none_of_them(
    play: Play,
) -> None:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: LoopContext[int]) -> object:
        ctx.logger.info("try")
        if ctx.attempt == 1:
            raise ValueError("once")  # The worker logs `worker.attempt-failed`.
        return ctx.complete(None)

    async def story(stage: Stage) -> None:
        await stage.put(loop_task(1, iteration=4))
        await stage.event(StepFailed)
        await stage.put(loop_task(1, iteration=4, attempt=2))
        await stage.event(StepCompleted, n=2)

    found = play(worker, story)
    assert [(line.text, line.iteration, line.attempt) for line in found] == [
        ("try", 4, 1),
        ("try", 4, 2),
    ]


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3_000])
def test_an_execution_that_logs_without_end_is_cut_off_with_a_word(play: Play, size: int) -> None:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        for number in range(capture.LINES_MAX + 500):
            ctx.logger.info("%s", "x" * size)
            if number % 100 == 0:
                await asyncio.sleep(0.001)
        return "end"

    found = play(worker, one_task)
    assert len(found) <= capture.LINES_MAX + 1
    assert sum(len(line.text) for line in found) <= capture.CHARS_MAX + capture.LINE_CHARS_MAX
    assert "more was logged" in found[-1].text and found[-1].level == "warning"
    assert "more was logged" not in found[-2].text


@pytest.mark.parametrize(
    ("level", "texts"),
    [("debug", ["own", "detail", "bad"]), ("error", ["own", "bad"]), ("off", [])],
)
def test_the_level_of_capture_can_be_set(play: Play, level: str, texts: list[str]) -> None:
    worker = Worker(capture_logs=level)

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.logger.info("own")
        logging.getLogger("library").info("detail")
        logging.getLogger("library").error("bad")
        return "end"

    assert [line.text for line in play(worker, one_task)] == texts


def test_a_level_that_is_none_is_an_error_at_once() -> None:
    with pytest.raises(HandlerError, match="'loud', which is no level"):
        Worker(capture_logs="loud")


def test_outside_of_an_execution_nothing_is_captured_and_python_still_prints_its_last_resort(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    printed = io.StringIO()
    monkeypatch.setattr(sys, "stderr", printed)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    with capture.capturing(logging.WARNING):
        logging.getLogger("library").warning("to whom it may concern")
        own = logging.getLogger("handled")
        monkeypatch.setattr(own, "handlers", [logging.NullHandler()])
        own.warning("not printed")
    assert printed.getvalue() == "to whom it may concern\n"
    assert root.handlers == []
