"""Inputs that a task only refers to: the run's request, outputs of steps, signal payloads.
Method: store them as client and engine do, let a worker's handler return what it was given."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
from tests.worker.stage import Stage, open_stage, task

from treadle.sdk.messages import (
    Ended,
    FromRun,
    FromSteps,
    RunRequested,
    SignalReceived,
    StepCompleted,
    StepFailed,
    TaskInput,
    TaskLost,
)
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker


def _echo() -> Worker:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    return worker


async def _put(stage: Stage, source: TaskInput) -> None:
    await stage.put(msgspec.structs.replace(task(), input=source), step="last")


async def _event(stage: Stage, event: object) -> int:
    return await stage.js.store(stage.subjects.event("r1"), msgspec.json.encode(event))


async def _ended(stage: Stage, step: str, output: bytes) -> None:
    ended = Ended(parent="e1", outcome="completed", iterations=1, output=msgspec.Raw(output))
    await stage.put(ended, step=step)


def test_the_runs_own_input_is_read_from_its_request(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, stage.running(_echo()):
            given = RunRequested(workflow="flow", definition="0", input=msgspec.Raw(b'{ "a":1}'))
            await _put(stage, FromRun(await _event(stage, given)))
            assert bytes((await stage.event(StepCompleted, n=2)).output) == b'{"a":1}'

    asyncio.run(story())


def test_outputs_and_signals_are_put_together_by_step(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, stage.running(_echo()):
            await _ended(stage, "one", b"[1,2]")
            await _ended(stage, "two", b'"x"')
            signal = SignalReceived(name="go", payload=msgspec.Raw(b'{"by":"me"}'))
            at = await _event(stage, signal)
            source = FromSteps({"one": "work", "two": "work", "go": ""}, {"go": at})
            await _put(stage, source)
            event = await stage.event(StepCompleted, n=2)
            assert bytes(event.output) == b'{"one":[1,2],"two":"x","go":{"by":"me"}}'
            await _put(stage, FromSteps({"one": "work"}, single=True))
            assert bytes((await stage.event(StepCompleted, n=3)).output) == b"[1,2]"

    asyncio.run(story())


def test_an_input_that_is_gone_fails_the_step_for_good_and_names_it(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, stage.running(_echo()):
            await _put(stage, FromSteps({"gone": "work"}, single=True))
            failure = (await stage.event(StepFailed)).failure
            assert (failure.type, failure.retryable) == ("InputLost", False)
            assert "output of step 'gone' cannot be read" in failure.message
            await _put(stage, FromRun(999))
            failure = (await stage.event(StepFailed, n=2)).failure
            assert "event 999 is not in" in failure.message

    asyncio.run(story())


def test_a_server_that_shows_an_old_register_is_not_believed(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, stage.running(_echo()):
            await stage.put(task(), step="old", type_="other")
            await _put(stage, FromSteps({"old": "other"}, single=True))
            await stage.event(TaskLost)

    asyncio.run(story())
