"""The page about workers in other languages: what it shows serves steps of all kinds of ends.

Method: its Python, which uses nothing of Treadle, runs beside an engine on a real server.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.pages import block_of

from treadle.engine.inputs import INLINE_BYTES_MAX
from treadle.sdk import Retry, RunFailed, Workflow
from treadle.worker.intake import ACK_WAIT_S, consumer_config

Work = Callable[[Any], Awaitable[Any]]


@contextlib.asynccontextmanager
async def serving(stand: Stand, work: Work, ack_wait_s: float = 1) -> AsyncGenerator[None]:
    """Serve as the page does, with a shorter wait for a dead worker; what hangs dies at the end."""
    names = block_of("other-languages.md")
    config = names["ConsumerConfig"]

    def impatient(**given: Any) -> Any:
        return config(**{**given, "ack_wait": ack_wait_s})

    names["ConsumerConfig"] = impatient
    served = names["serve"](stand.settings.url, stand.settings.namespace, "shout", work)
    task = asyncio.create_task(served)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


def shouting(max_attempts: int = 1) -> Workflow:
    workflow = Workflow("far", input=str)
    workflow.task("say", "shout", retry=Retry(max_attempts=max_attempts, delay_s=0.05, jitter=0))
    return workflow


def test_it_completes_a_step_and_its_failures_are_tried_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        calls: list[Any] = []

        async def work(value: str) -> str:
            calls.append(value)
            if len(calls) == 1:
                raise ConnectionError("the line is busy")
            return value.upper()

        await stand.engine()
        async with serving(stand, work):
            run = await stand.client.start(shouting(2), "hi")
            assert await run.result(timeout_s=20) == "HI"
        assert calls == ["hi", "hi"]

    play(story)


@pytest.mark.slow
def test_a_task_whose_worker_died_is_given_out_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        begun = asyncio.Event()

        async def hangs(_: str) -> str:
            begun.set()
            await asyncio.Event().wait()
            return "never"

        async def answers(value: str) -> str:
            return value.upper()

        await stand.engine()
        run = await stand.client.start(shouting(), "hi")
        async with serving(stand, hangs):
            await asyncio.wait_for(begun.wait(), 20)
        async with serving(stand, answers):
            assert await run.result(timeout_s=20) == "HI"
        history = [each async for each in stand.client.history(run.id)]
        assert [each.attempt for each in history if each.kind == "task.lost"] == [1]

    play(story)


def test_what_it_does_not_take_fails_with_the_reason(play: Play) -> None:
    async def story(stand: Stand) -> None:
        async def work(value: str) -> str:
            return value

        await stand.engine()
        async with serving(stand, work):
            run = await stand.client.start(shouting(), "x" * INLINE_BYTES_MAX)
            with pytest.raises(RunFailed, match="at most 64 KiB"):
                await run.result(timeout_s=20)

    play(story)


def test_its_consumer_is_the_one_of_workers_in_python(play: Play) -> None:
    async def story(stand: Stand) -> None:
        async def work(value: str) -> str:
            return value

        subjects = stand.subjects
        await stand.engine()
        async with serving(stand, work, ack_wait_s=ACK_WAIT_S):
            run = await stand.client.start(shouting(), "hi")
            assert await run.result(timeout_s=20) == "hi"
            name = subjects.worker_consumer("shout")
            info = await stand.js.api(f"CONSUMER.INFO.{subjects.steps_stream}.{name}")
        wanted = consumer_config(subjects.registers_of_type("shout"), ACK_WAIT_S)
        assert {key: info["config"][key] for key in wanted} == wanted

    play(story)
