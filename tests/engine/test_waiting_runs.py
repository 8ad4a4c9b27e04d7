"""A run that waits, for whatever, can be cancelled and times out without any traffic.

Every kind of step that begins a run knows the run's input; a worker that has room gets work.

Method: one workflow for each kind of wait, on a real engine, with nothing else going on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import RunCancelled, RunFailed, Workflow
from treadle.worker import LoopContext, TaskContext, Worker


def _signal(workflow: Workflow) -> None:
    workflow.wait_for_signal("step", timeout=600)


def _event(workflow: Workflow) -> None:
    workflow.wait_for_event("step", "order.paid", timeout=600)


def _approval(workflow: Workflow) -> None:
    workflow.approval("step", timeout=600)


def _sleep(workflow: Workflow) -> None:
    workflow.sleep("step", timedelta(days=7))


def _unserved(workflow: Workflow) -> None:
    workflow.task("step", "nobody-serves-this")


WAITS: dict[str, Callable[[Workflow], None]] = {
    "signal": _signal,
    "event": _event,
    "approval": _approval,
    "sleep": _sleep,
    "worker": _unserved,
}


async def _active(stand: Stand, run: str) -> None:
    """Wait until the step of the run has begun."""
    await stand.until(
        "the step is active",
        lambda: stand.document(run),
        lambda document: document is not None and document.steps["step"].status == "active",
    )


@pytest.mark.parametrize("kind", WAITS)
def test_a_run_that_waits_is_cancelled_and_leaves_nothing(play: Play, kind: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("waits")
        WAITS[kind](workflow)
        run = await stand.client.start(workflow)
        await _active(stand, run.id)
        await run.cancel("not needed any more")
        with pytest.raises(RunCancelled, match="not needed any more"):
            await run.result(timeout_s=10)
        ended = await stand.ended(run.id)
        assert ended.steps["step"].status == "cancelled"

        async def left() -> int:
            s = stand.subjects
            found = stand.js.read(s.timers_stream, s.timers_of_run(run.id))
            return len([each async for each in found])

        await stand.until("its timers are gone", left, lambda count: count == 0)
        assert await stand.client.approvals() == ()

    play(story)


@pytest.mark.parametrize("kind", WAITS)
def test_a_run_that_waits_times_out_although_nothing_happens(play: Play, kind: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("waits", timeout=0.5)
        WAITS[kind](workflow)
        run = await stand.client.start(workflow)
        with pytest.raises(RunFailed, match="run_timeout"):
            await run.result(timeout_s=10)
        assert (await stand.ended(run.id)).steps["step"].status == "cancelled"

    play(story)


def test_every_kind_of_step_that_begins_a_run_knows_the_runs_input(play: Play) -> None:
    workflow = Workflow("roots")
    workflow.task("task")
    workflow.agent_loop("loop", max_iterations=2)
    workflow.approval("approval")
    workflow.choice("choice", {"seven": 'input["n"] == 7'}, default="other")
    workflow.wait_for_event("event", "order.paid", match='event == input["n"]')
    workflow.wait_for_signal("signal", when='input["n"] != 7')
    workflow.sleep("sleep", 0.01, when='input["n"] == 7')
    worker = Worker()

    @worker.handler("task")
    async def task(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    @worker.handler("loop")
    async def loop(ctx: LoopContext[Any]) -> Any:
        return ctx.complete(ctx.input)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, {"n": 7})
        await stand.until("it is asked", stand.client.approvals, bool)
        (asked,) = await run.approvals()
        assert bytes(asked.ask.input) == b'{"n":7}'
        await run.approve("approval", "approval")
        await stand.client.publish_event("order.paid", 7)
        result = await run.result(timeout_s=15)
        assert result.pop("approval")["approved"]
        assert result == {
            "task": {"n": 7},
            "loop": {"n": 7},
            "choice": "seven",
            "event": 7,
            "signal": None,
            "sleep": None,
        }

    play(story)


@pytest.mark.slow
def test_a_worker_that_comes_after_fifty_cancels_runs_none_of_them(play: Play) -> None:
    workflow = Workflow("waits")
    workflow.task("step", "late")
    worker, ran = Worker(), list[str]()

    @worker.handler("late")
    async def late(ctx: TaskContext[Any]) -> None:
        ran.append(ctx.run)

    async def story(stand: Stand) -> None:
        await stand.engine()
        names = [f"r{n}" for n in range(50)]
        for name in names:
            await stand.client.start(workflow, id=name)
        await _active(stand, names[-1])
        for name in names:
            await stand.client.cancel(name)
        for name in names:
            await stand.status(name, "cancelled")
        stand.worker(worker)
        # What is started behind them comes at once: nothing of them is in its way.
        await stand.client.start(workflow, id="alive")
        await stand.ended("alive")
        assert ran == ["alive"]
        s = stand.subjects
        consumer = s.worker_consumer("late")

        async def left() -> int:
            info = await stand.js.api(f"CONSUMER.INFO.{s.steps_stream}.{consumer}")
            return int(info["num_pending"]) + int(info["num_ack_pending"])

        await stand.until("nothing is queued", left, lambda n: n == 0)

    play(story)


def test_two_workers_of_one_type_both_get_work(play: Play) -> None:
    at_work, both = set[str](), asyncio.Event()

    def serving(name: str) -> Worker:
        worker = Worker(name, concurrency=1)

        @worker.handler("charge")
        async def charge(ctx: TaskContext[Any]) -> str:
            at_work.add(name)
            if len(at_work) == 2:
                both.set()
            await both.wait()  # Neither ends before the other one has work.
            return name

        return worker

    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("one", "two"):
            stand.worker(serving(name))
        workflow = Workflow("orders")
        workflow.task("charge")
        runs = [await stand.client.start(workflow, id=f"r{n}") for n in range(2)]
        assert {await run.result(timeout_s=20) for run in runs} == {"one", "two"}

    play(story)
