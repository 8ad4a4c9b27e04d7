"""A respond step answers once, at once, and the run goes on; its result is what was before it.
Method: examples of the core and its properties over any plan; the builder, and a simulation."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Plan, StepEnded
from treadle.sdk import InvalidDefinition, Workflow
from treadle.sdk.definition import RespondStep, TaskStep
from treadle.sdk.messages import Failure
from treadle.sdk.outcome import outcome_of
from treadle.sdk.testing import simulate
from treadle.worker import TaskContext, Worker

WORK = TaskStep(id="a", type="work")


def test_a_response_is_given_when_it_is_its_turn_and_what_follows_starts() -> None:
    respond = RespondStep(id="r", after=("a",))
    walk = RunWalk(plan_of(WORK, respond, TaskStep(id="b", type="work", after=("r",))))
    assert (walk.run.responded, walk.status("b")) == ("", "waiting")
    walk.send(StepEnded("a", "completed", 1))
    assert (walk.run.responded, walk.status("r"), walk.status("b")) == ("r", "completed", "active")


def test_the_first_response_counts_and_a_skipped_one_is_none() -> None:
    first = RespondStep(id="first", after=("a",), when="false")
    second, third = RespondStep(id="second", after=("a",)), RespondStep(id="third", after=("b",))
    walk = RunWalk(plan_of(WORK, TaskStep(id="b", type="work"), first, second, third))
    walk.send(StepEnded("b", "completed", 1))
    assert walk.run.responded == "third"
    walk.send(StepEnded("a", "completed", 1))
    assert walk.run.responded == "third"
    assert (walk.status("first"), walk.status("second")) == ("skipped", "completed")


def test_a_failure_can_be_answered() -> None:
    fails = TaskStep(id="a", type="work", on_failure="sorry")
    walk = RunWalk(plan_of(fails, RespondStep(id="sorry", status=409)))
    walk.send(StepEnded("a", "failed", 1, Failure("ValueError", "no")))
    assert (walk.run.responded, walk.run.status) == ("sorry", "completed")


@given(own.plans(own.FLOW_KINDS), st.lists(own.run_events, max_size=20))
def test_a_response_never_changes_and_is_that_of_a_completed_step(
    plan: Plan, events: list[Any]
) -> None:
    walk = RunWalk(plan)
    for event in events:
        before = walk.run.responded
        after = walk.send(event)
        assert not before or after.responded == before
        responses = [s for s in plan.definition.steps if isinstance(s, RespondStep)]
        completed = [s.id for s in responses if walk.status(s.id) == "completed"]
        assert bool(completed) == bool(after.responded)
        assert not completed or after.responded in completed


@pytest.mark.parametrize(
    ("build", "expected"),
    [
        (lambda w, a: w.respond("r", after=a), (("a",), True)),
        (lambda w, a: w.task("b", after=w.respond("r", after=a)), (("b",), True)),
        (lambda w, a: (w.respond("r", after=a), w.task("b", after=a)), (("b",), True)),
        (lambda w, a: w.respond("r", after=[a, w.task("b")]), (("a", "b"), False)),
        (lambda w, a: w.respond("r"), (("a",), True)),
    ],
)
def test_a_response_at_the_end_leaves_the_result_to_what_it_waits_for(
    build: Any, expected: tuple[tuple[str, ...], bool]
) -> None:
    workflow = Workflow("w")
    build(workflow, workflow.task("a"))
    plan = plan_of(*workflow.build().steps)
    walk = RunWalk(plan)
    for step in ("a", "b"):
        if step in plan.steps:
            walk.send(StepEnded(step, "completed", 1))
    outcome = outcome_of(plan.definition, walk.run)
    assert (tuple(step.id for step in outcome.steps), outcome.is_single) == expected


def test_a_workflow_of_a_response_alone_completes_at_once() -> None:
    walk = RunWalk(plan_of(RespondStep(id="r")))
    assert walk.run.status == "completed"
    assert [step.id for step in outcome_of(walk.plan.definition, walk.run).steps] == ["r"]


@pytest.mark.parametrize(
    ("headers", "status", "told"),
    [
        ({"bad name": "x"}, 200, "cannot be the name of a header"),
        ({"Content-Length": "1"}, 200, "the gateway sets this header itself"),
        ({"x": "a\r\nset-cookie: y"}, 200, "cannot be the value of a header"),
        ({"x-a": "1", "X-A": "2"}, 200, "is there twice"),
        ({"x": 1}, 200, "expected text"),
        ({str(n): "" for n in range(33)}, 200, "32 are allowed"),
        ({}, 100, "status is 100"),
        ({}, 600, "status is 600"),
    ],
)
def test_what_cannot_be_a_response_is_refused(headers: Any, status: int, told: str) -> None:
    workflow = Workflow("w")
    workflow.respond("r", status=status, headers=headers)
    with pytest.raises(InvalidDefinition, match=told):
        workflow.build()


def test_a_simulated_run_has_its_response() -> None:
    workflow = Workflow("w")
    workflow.respond("r", status=201, headers={"x-kind": "echo"}, after=workflow.task("a"))
    worker = Worker()

    @worker.handler("a")
    async def double(ctx: TaskContext[int]) -> int:
        return 2 * ctx.input

    run = asyncio.run(simulate(workflow, 21, worker))
    assert run.response is not None
    response = (run.response.status, run.response.headers, run.response.body)
    assert response == (201, {"x-kind": "echo"}, 42)
    assert run.result() == 42
    at_once = Workflow("at-once")
    at_once.respond("r")
    begun = asyncio.run(simulate(at_once, {"n": 7})).response
    assert begun is not None
    assert begun.body == {"n": 7}, "one that begins a run has the run's input"
    silent = Workflow("silent")
    silent.task("a")
    assert asyncio.run(simulate(silent, 1, worker)).response is None
