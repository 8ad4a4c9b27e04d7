"""Planners on a real server: runs that grow, and everybody who looks at them sees the same steps.
Method: workers that plan, engines that start anew in the middle, and clients that look."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Retry, RunCancelled, RunFailed, Workflow
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.document import parse_definition
from treadle.sdk.messages import Ended, Task
from treadle.worker import LoopContext, TaskContext, Worker

BIG = "x" * 40_000
QUICK = Retry(max_attempts=3, delay_s=0.01, max_delay_s=0.01)


def research(**planner: Any) -> WorkflowDefinition:
    """Return a workflow with a planner between two tasks."""
    workflow = Workflow("research")
    topic = workflow.task("topic", "echo")
    plan = workflow.planner("plan", after=topic, retry=QUICK, **planner)
    workflow.task("report", "echo", after=plan)
    return workflow.build()


def working(*plans: Any) -> Worker:
    """Return a worker that plans these, one after the other, and says what it was given."""
    worker, left = Worker(), list(plans)

    @worker.handler("plan")
    async def plan(ctx: TaskContext[Any]) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    @worker.handler("echo")
    async def echo(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    @worker.handler("big")
    async def big(ctx: TaskContext[Any]) -> str:
        return BIG

    @worker.handler("think")
    async def think(ctx: LoopContext[Any]) -> Any:
        return ctx.complete(ctx.iteration) if ctx.iteration else ctx.continue_(ctx.input)

    return worker


def echo(step_id: str, *after: str, **fields: Any) -> dict[str, Any]:
    return {"kind": "task", "id": step_id, "type": "echo", "after": list(after), **fields}


def test_a_run_grows_by_its_plan_and_everybody_sees_it(play: Play) -> None:
    steps = [
        echo("a"),
        echo("b", when='input["deep"] == false'),
        {"kind": "agent_loop", "id": "c", "type": "think", "after": ["a"], "max_iterations": 5},
    ]
    plan = {"steps": steps, "inputs": {"a": "cats"}}

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(working(plan))
        run = await stand.client.start(research(), {"deep": True}, id="r1")
        # c is the last step of the plan, b was skipped.
        assert await run.result(timeout_s=15) == {"b": None, "c": 1}
        view = await stand.client.get("r1")
        assert [(step.id, step.kind, step.status) for step in view.steps] == [
            ("topic", "task", "completed"),
            ("plan", "planner", "completed"),
            ("plan--a", "task", "completed"),
            ("plan--b", "task", "skipped"),
            ("plan--c", "agent_loop", "completed"),
            ("report", "task", "completed"),
        ]
        timeline = await stand.client.timeline("r1")
        assert [span.step for span in timeline.spans] == [
            *("topic", "plan", "plan--a", "plan--c", "plan--c", "report")
        ]
        assert set(timeline.loops) == {"plan--c"}
        trace = await stand.client.trace("r1")
        assert {"step plan", "step plan--a", "invoke_agent plan--c"} <= {
            span.name for span in trace.spans
        }
        document = await stand.document("r1")
        assert document is not None
        held = await stand.register("r1", "plan", "plan")
        assert held is not None
        assert document.steps["plan"].position == held.token, "the document says where the plan is"

    play(story)


def test_a_plan_that_is_refused_is_tried_again_with_the_reasons(play: Play) -> None:
    told: list[str] = []
    worker = Worker()

    @worker.handler("plan")
    async def plan(ctx: TaskContext[Any]) -> Any:
        if ctx.last_failure is None:
            return {"steps": [echo("a", "b"), {"kind": "task", "id": "c", "type": "rm"}]}
        told.extend(ctx.last_failure.message.splitlines())
        return {"steps": [echo("a")]}

    @worker.handler("echo")
    async def handle(ctx: TaskContext[Any]) -> Any:
        return ctx.input

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(research(allowed_tasks=["echo"]), "in", id="r1")
        assert await run.result(timeout_s=15) == "in"
        assert told == [
            "the plan has 2 problems:",
            "steps[0].after[0]: step 'a' waits for 'b', which is not a step. Add it, or correct "
            "after.",
            "steps[1].type: task type 'rm' is not one that this planner may use: echo. "
            "Choose one of them.",
        ]
        spans = [s for s in (await stand.client.timeline("r1")).spans if s.step == "plan"]
        assert [(span.attempt, span.outcome) for span in spans if span.attempt] == [
            (1, "failed"),
            (2, "completed"),
        ]

    play(story)


def test_a_planner_that_takes_longer_than_its_timeout_is_tried_again(play: Play) -> None:
    worker, attempts = working({"steps": []}), list[int]()

    @worker.handler("slow")
    async def slow(ctx: TaskContext[Any]) -> Any:
        attempts.append(ctx.attempt)
        if ctx.attempt == 1:
            await asyncio.sleep(60)
        assert ctx.last_failure is not None
        assert ctx.last_failure.type == "timeout"
        return {"steps": [echo("a")]}

    async def story(stand: Stand) -> None:
        workflow = Workflow("slow")
        workflow.planner("plan", "slow", timeout=0.2, retry=QUICK)
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, "in", id="r1")
        assert await run.result(timeout_s=15) == "in"
        assert attempts == [1, 2]

    play(story)


def test_a_run_whose_planner_never_plans_soundly_fails_with_the_reasons(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(working({"steps": 1}))
        run = await stand.client.start(research(), id="r1")
        with pytest.raises(RunFailed, match="steps: expected a list of steps, got 1"):
            await run.result(timeout_s=15)

    play(story)


def test_another_engine_comes_to_the_same_plan(play_both: Play) -> None:
    workflow = Workflow("w")
    workflow.planner("plan", max_steps=8, max_depth=1)

    async def story(stand: Stand) -> None:
        first = await stand.engine()
        plan = {
            "steps": [
                {"kind": "signal", "id": "go", "signal": "go"},
                {"kind": "planner", "id": "more", "type": "plan", "after": ["go"], "max_steps": 3},
                echo("end", "more"),
            ]
        }
        worker = working(plan, {"steps": [echo("x"), echo("y", "x")], "inputs": {"x": 7}})
        stand.worker(worker)
        run = await stand.client.start(workflow, id="r1")
        await stand.until(
            "the run waits",
            lambda: stand.client.get("r1"),
            lambda view: any(step.doing == "awaiting_signal" for step in view.steps),
        )
        await stand.stop(first)
        await stand.engine()
        await run.signal("go")
        assert await run.result(timeout_s=15) == 7
        view = await stand.client.get("r1")
        assert [step.id for step in view.steps] == [
            *("plan", "plan--go", "plan--more", "plan--more--x", "plan--more--y", "plan--end")
        ]

    play_both(story)


def test_what_is_too_large_for_a_task_is_put_together_by_the_worker(play: Play) -> None:
    big = {"kind": "task", "type": "big"}
    steps = [{**big, "id": "a"}, {**big, "id": "b"}, echo("c", "a", "b")]

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(working({"steps": steps, "inputs": {"c": "both"}}))
        run = await stand.client.start(research(), id="r1")
        result = await run.result(timeout_s=15)
        assert result == {"input": "both", "steps": {"a": BIG, "b": BIG}}

    play(story)


def test_a_cancel_stops_the_steps_of_a_plan(play: Play) -> None:
    stopped = asyncio.Event()
    worker = Worker()

    @worker.handler("echo")
    async def handle(ctx: TaskContext[Any]) -> Any:
        return {"steps": [{"kind": "task", "id": "a", "type": "hang"}]}

    @worker.handler("hang")
    async def hang(ctx: TaskContext[Any]) -> None:
        try:
            await asyncio.sleep(60)
        finally:
            stopped.set()

    workflow = Workflow("w", timeout=timedelta(hours=1))
    workflow.planner("plan", "echo")

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, id="r1")
        await stand.holds(Task, "r1", "plan--a", "hang")
        await run.cancel()
        with pytest.raises(RunCancelled):
            await run.result(timeout_s=15)
        await asyncio.wait_for(stopped.wait(), 10)
        await stand.holds(Ended, "r1", "plan--a", "hang")

    play(story)


def test_a_planner_in_yaml_is_the_one_in_python() -> None:
    text = """
name: research
steps:
  - {kind: task, id: topic, type: echo}
  - kind: planner
    id: plan
    type: plan
    after: [topic]
    max_steps: 5
    max_depth: 1
    allowed_tasks: [echo]
    retry: {max_attempts: 3, delay_s: 0.01, max_delay_s: 0.01}
  - {kind: task, id: report, type: echo, after: [plan]}
"""
    same = research(max_steps=5, max_depth=1, allowed_tasks=["echo"])
    assert parse_definition(text, "yaml") == same
