"""Simulated runs keep limits among their steps, and steps that ask anew take turns.
Method: steps that share a slot, in virtual time; a step that never gets its turn would not end."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest

from treadle.sdk import Workflow
from treadle.sdk.asks import Ask, Reply
from treadle.sdk.flow import Concurrency
from treadle.sdk.testing import crash_everywhere, simulate
from treadle.worker import LoopContext, TaskContext, Worker


def counting() -> tuple[Worker, list[int]]:
    """Return a worker, and how many of its handlers have run at a time."""
    worker, at_a_time, under_way = Worker(), [0], set[str]()

    async def work(step: str) -> None:
        under_way.add(step)
        at_a_time.append(len(under_way))
        await asyncio.sleep(1)
        under_way.discard(step)

    @worker.handler("loop")
    async def loop(ctx: LoopContext[Any]) -> object:
        await work(ctx.step)
        return ctx.continue_() if ctx.iteration < 2 else ctx.complete(ctx.iteration)

    @worker.handler("task")
    async def task(ctx: TaskContext[Any]) -> int:
        await work(f"{ctx.step}")
        return 1

    return worker, at_a_time


def test_loops_that_share_a_slot_take_turns() -> None:
    worker, at_a_time = counting()
    workflow = Workflow("shared", timeout=timedelta(days=2))
    for name in ("a", "b", "c"):
        only = Concurrency(1, scope="type")
        workflow.agent_loop(name, "loop", max_iterations=5, concurrency=only)
    run = asyncio.run(simulate(workflow, None, worker))
    assert (run.result(), run.elapsed_s) == ({"a": 2, "b": 2, "c": 2}, 9)
    assert max(at_a_time) == 1


def test_items_and_tasks_with_limits_survive_every_crash() -> None:
    worker, _ = counting()
    workflow = Workflow("limited", timeout=timedelta(days=2))
    only = Concurrency(1, scope="type")
    first = [workflow.task(name, "task", concurrency=only) for name in ("a", "b")]
    workflow.agent_loop("then", "loop", after=first, max_iterations=5, concurrency=Concurrency(1))
    report = asyncio.run(crash_everywhere(workflow, None, worker))
    assert (report.outcome, report.lives > 20) == (2, True)


def test_an_answer_that_a_step_does_not_take_is_refused_and_the_step_goes_on_waiting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    workflow = Workflow("gate")
    workflow.approval("gate", approvers=["ada"], timeout=60)

    def eve(ask: Ask) -> Reply:
        return Reply(call_id=ask.id, verdict="approve", by="eve")

    run = asyncio.run(simulate(workflow, answers=eve))
    assert (run.status, run.reason, run.elapsed_s) == ("failed", "timeout", pytest.approx(60))
    (said,) = [each for each in caplog.messages if "simulate.answer-refused" in each]
    assert "by ada, and 'eve' is none of them" in said

    def then_ada(ask: Ask) -> Reply:
        return Reply(call_id=ask.id, verdict="approve", by="ada" if ask.problem else "eve")

    assert asyncio.run(simulate(workflow, answers=then_ada)).status == "completed"
