"""What a handler does wrong fails its step with a text that names the fault and the remedy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import Retry, Workflow
from treadle.sdk.messages import Failure, Task
from treadle.worker import LoopContext, Worker

Handler = Callable[[LoopContext[Any]], Awaitable[object]]


async def unserialisable(ctx: LoopContext[Any]) -> object:
    return ctx.complete({"connection": object()})


async def not_a_number(ctx: LoopContext[Any]) -> object:
    return ctx.continue_(float("nan"))


async def too_large(ctx: LoopContext[Any]) -> object:
    return ctx.complete("x" * 600_000)


async def two_verdicts(ctx: LoopContext[Any]) -> object:
    ctx.continue_()
    return ctx.complete()


async def no_verdict(ctx: LoopContext[Any]) -> object:
    return None


async def leaves(ctx: LoopContext[Any]) -> object:
    raise SystemExit(3)


CASES: list[tuple[Handler, str]] = [
    (unserialisable, "output of step 'loop'"),
    (not_a_number, "output of step 'loop'"),
    (too_large, "524288 are allowed"),
    (two_verdicts, "2 verdicts"),
    (no_verdict, "without a verdict"),
    (leaves, "3"),
]


@pytest.mark.parametrize(("handler", "text"), CASES, ids=[each[0].__name__ for each in CASES])
def test_a_handler_that_is_wrong_fails_its_step_and_the_worker_lives(
    play: Play, handler: Handler, text: str
) -> None:
    async def story(stand: Stand) -> None:
        worker = Worker()
        worker.handler("link")(handler)

        @worker.handler("good")
        async def good(ctx: LoopContext[Any]) -> object:
            return ctx.complete("alive")

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(retry=Retry(max_attempts=1)), None, id="run")
        failure = await _failure(stand)
        assert text in f"{failure.type}: {failure.message}"
        good_one = Workflow("good")
        good_one.agent_loop("loop", "good", max_iterations=3)
        await stand.client.start(good_one, None, id="other")
        assert await stand.client.result("other", timeout_s=10) == "alive"

    play(story)


async def _failure(stand: Stand) -> Failure:
    ended = await stand.ended()
    assert ended.status == "failed"
    assert ended.failure is not None
    return ended.failure


def test_a_task_type_without_a_worker_is_named_by_the_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), None, id="run")
        await stand.holds(Task)
        view = await stand.client.get("run")
        texts = " ".join(note.text for note in view.notes)
        assert "link" in texts
        assert "worker" in texts

    play(story)
