"""A failed attempt is seen where the worker runs, with the line of the user's code.
Method: handlers that fail, on a real server or in memory; the log and the failure are read."""

from __future__ import annotations

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

import pytest
from tests.worker.stage import loop_task, open_stage, task
from tests.worker.test_execution import verdict_of

from treadle.sdk.errors import NonRetryable
from treadle.sdk.messages import StepCompleted, StepFailed
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, TaskContext, Worker
from treadle.worker.settle import timeout_failure
from treadle.worker.verdict import Fail


@dataclass
class Point:
    x: int


def line_of(function: Any, offset: int) -> str:
    return f"test_failure.py:{function.__code__.co_firstlineno + offset}"


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_failed_attempt_is_one_warning_with_its_place_and_a_success_is_none(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: LoopContext[Any]) -> Any:
            if ctx.input == "fine":
                return ctx.complete(1)
            raise ValueError("two\nlines")

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(loop_task("fine"), run="r0")
            await stage.event(StepCompleted, run="r0")
            assert warnings_of(caplog) == []
            await stage.put(loop_task(iteration=3, attempt=2))
            await stage.event(StepFailed)
            (told,) = warnings_of(caplog)
            assert told.startswith(
                "worker.attempt-failed type=work run=r1 step=s iteration=3 attempt=2: "
                "ValueError: two lines (at "
            )
            assert line_of(work, 4) in told

    asyncio.run(story())


def test_a_plain_task_names_no_iteration_and_a_final_failure_says_that_it_is_final(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[Any]) -> Any:
            if ctx.input == "verdict":
                return ctx.fail("said so")
            raise NonRetryable

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task("verdict"))
            stored = await stage.event(StepFailed)
            assert stored.failure.place.endswith(line_of(work, 3)), "the history names it too"
            assert "step=s attempt=1: failed: said so (at " in warnings_of(caplog)[0]
            assert line_of(work, 3) in warnings_of(caplog)[0]
            await stage.put(task(), step="t")
            await stage.event(StepFailed, n=2)
            told = warnings_of(caplog)[1]
            assert ": NonRetryable (at " in told and told.endswith("; it is not tried again")

    asyncio.run(story())


def test_the_place_is_the_users_line_also_when_a_library_raised() -> None:
    async def in_a_library(ctx: TaskContext[Any]) -> None:
        json.loads("{")

    async def in_a_group(ctx: TaskContext[Any]) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(in_a_library(ctx))

    async def two(ctx: LoopContext[Any]) -> Any:
        ctx.complete(1)
        return ctx.complete(2)

    for handler, place in (
        (in_a_library, line_of(in_a_library, 1)),
        (in_a_group, line_of(in_a_library, 1)),
        (two, line_of(two, 0)),
    ):
        verdict = verdict_of(handler, loop_task())
        assert isinstance(verdict, Fail) and verdict.failure.place.endswith(place), verdict


def test_what_treadle_explains_shows_no_frames_of_its_own() -> None:
    async def typed(ctx: TaskContext[Point]) -> None: ...

    async def unstorable(ctx: TaskContext[Any]) -> Any:
        return ctx.complete(object())

    async def broken(ctx: TaskContext[Any]) -> Any:
        try:
            json.loads("{")
        except ValueError as exc:
            raise RuntimeError("no") from exc

    verdict = verdict_of(typed, task({"x": "one"}))
    assert isinstance(verdict, Fail) and verdict.failure.type == "InvalidPayload"
    assert verdict.failure.traceback == "" and verdict.failure.place.endswith(line_of(typed, 0))
    verdict = verdict_of(unstorable)
    assert isinstance(verdict, Fail)
    assert "in unstorable" in verdict.failure.traceback
    assert verdict.failure.traceback.count('File "') == 1
    verdict = verdict_of(broken)
    assert isinstance(verdict, Fail)
    assert "JSONDecodeError" in verdict.failure.traceback, "causes of users' errors stay"


def test_the_text_of_a_timeout_names_an_iteration_of_a_loop_only() -> None:
    looped = timeout_failure(loop_task(iteration=3, timeout_ms=150)).message
    assert looped.startswith("attempt 1 of iteration 3 ran longer than its timeout of 0.15 s")
    assert "iteration" not in timeout_failure(task(timeout_ms=150)).message


def test_a_drain_says_how_many_handlers_it_waits_for(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.worker")

    async def story() -> None:
        worker = Worker()
        begun, may_end = asyncio.Event(), asyncio.Event()

        @worker.handler("work")
        async def work(ctx: TaskContext[Any]) -> None:
            begun.set()
            await may_end.wait()

        async with open_stage(settings) as stage, stage.running(worker) as run:
            await stage.put(task())
            await begun.wait()
            worker.stop()
            while "worker.waiting for 1 handler to end" not in caplog.text:
                assert not run.done()
                await asyncio.sleep(0.01)
            may_end.set()

    asyncio.run(asyncio.wait_for(story(), 20))
