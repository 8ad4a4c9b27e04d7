"""Messages, waiting and budgets in memory, as they are on a server.
Method: ``simulate`` with handlers of a few lines and virtual hours."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

from treadle.sdk import Spent, Workflow
from treadle.sdk.testing import Message, Resume, simulate
from treadle.worker import LoopContext, Worker


def _loop(**options: Any) -> Workflow:
    workflow = Workflow("talk")
    workflow.agent_loop("talk", "talk", max_iterations=9, **options)
    return workflow


def _talker() -> Worker:
    worker = Worker()

    @worker.handler("talk")
    async def talk(ctx: LoopContext[Any]) -> Any:
        said = [*(ctx.input or []), *(message.decode() for message in await ctx.messages())]
        return ctx.complete(said) if "bye" in said else ctx.wait("an answer", state=said)

    return worker


def test_a_loop_waits_for_virtual_days() -> None:
    messages = [
        Message("talk", "hello", after_s=3_600),
        Message("talk", "bye", after_s=86_400),
    ]
    run = asyncio.run(simulate(_loop(max_duration=60), None, _talker(), messages=messages))
    assert run.result() == ["hello", "bye"]
    assert run.elapsed_s >= 86_400
    assert run.step("talk").iterations == 3


def test_a_run_that_waits_is_parked_and_says_so() -> None:
    run = asyncio.run(simulate(_loop(), None, _talker()))
    assert (run.status, run.reason, run.message) == ("parked", "waiting", "an answer")


def test_a_wait_ends_at_its_time() -> None:
    worker = Worker()

    @worker.handler("talk")
    async def talk(ctx: LoopContext[Any]) -> Any:
        return ctx.wait("a week", timedelta(days=7)) if not ctx.iteration else ctx.complete("done")

    run = asyncio.run(simulate(_loop(), None, worker))
    assert (run.result(), run.elapsed_s) == ("done", 7 * 86_400)


def test_a_message_that_comes_during_the_last_iteration_is_answered() -> None:
    worker = Worker()

    @worker.handler("talk")
    async def talk(ctx: LoopContext[Any]) -> Any:
        said = [message.decode() for message in await ctx.messages()]
        await asyncio.sleep(10)
        return ctx.complete([*(ctx.input or []), *said])

    run = asyncio.run(simulate(_loop(), None, worker, messages=[Message("talk", "hm", after_s=5)]))
    assert run.result() == ["hm"]
    assert run.step("talk").iterations == 2


def test_a_budget_parks_and_a_resume_raises_it() -> None:
    worker = Worker()

    @worker.handler("talk")
    async def talk(ctx: LoopContext[Any]) -> Any:
        ctx.report_spent(Spent(tool_calls=2, cost_micro_usd=300_000))
        assert ctx.remaining.cost_usd is not None
        return ctx.complete(ctx.spent.tool_calls) if ctx.iteration == 4 else ctx.continue_()

    loop = _loop(max_cost_usd=0.5, on_limit="park")
    run = asyncio.run(simulate(loop, None, worker))
    assert (run.status, run.reason, run.step("talk").iterations) == ("parked", "max_cost", 2)
    resume = Resume(after_s=60, add_cost_usd=5)
    assert asyncio.run(simulate(loop, None, worker, resume=resume)).result() == 10
