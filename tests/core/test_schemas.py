"""What does not fit what its workflow declares of it fails where it is decided, once and for good.
Method: the core's two doors with values that fit and do not; simulated runs; bounds as words."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from tests.core.strategies import EPOCH_MS, RUN
from tests.core.walks import RunWalk, StepWalk, plan_of

from treadle.engine.core import Moment, Plan, StepEnded, apply, progress, request
from treadle.engine.core.given import decision
from treadle.sdk import InvalidDefinition, Workflow
from treadle.sdk.definition import AgentLoopStep, Retry, TaskStep, WorkflowDefinition
from treadle.sdk.given import shape_of
from treadle.sdk.messages import Ended, Failure, RunRequested, Task
from treadle.sdk.schema_check import problems
from treadle.sdk.testing import simulate
from treadle.worker import LoopContext, TaskContext, Worker

NUMBER = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 1}}}
MOMENT = Moment(RUN, "e1", EPOCH_MS, 1)


class Total(msgspec.Struct):
    """An output."""

    cents: int


def _requested(schema: dict[str, Any] | None, raw: bytes, *, is_queued: bool = False) -> Any:
    definition = WorkflowDefinition(
        name="w", steps=(TaskStep(id="a", type="work"),), input_schema=schema
    )
    event = RunRequested(workflow="w", definition="h", input=msgspec.Raw(raw), lane="l")
    return request(Plan(definition, "h"), event, MOMENT, "main", is_queued=is_queued)


@pytest.mark.parametrize("is_queued", [False, True])
def test_a_run_whose_input_does_not_fit_fails_at_once_and_says_why(is_queued: bool) -> None:
    run = _requested(NUMBER, b'{"n": 0}', is_queued=is_queued)
    assert (run.status, run.steps, run.ended_ms) == ("failed", {}, EPOCH_MS)
    assert (run.failure.type, run.failure.message) == (
        "invalid_input",
        "the run's input does not fit its schema: n is 0, and must be at least 1",
    )
    assert _requested(NUMBER, b'{"n": 1}', is_queued=is_queued).status != "failed"
    assert _requested(None, b'{"n": 0}', is_queued=is_queued).status != "failed"


def test_an_output_that_does_not_fit_fails_the_step_without_another_attempt() -> None:
    step = TaskStep(id="a", type="work", retry=Retry(max_attempts=5), output_schema=NUMBER)
    ended = StepWalk(step).complete('{"n": "much"}')
    assert isinstance(ended, Ended)
    assert (ended.outcome, ended.failure.type, ended.failure.retryable) == (
        "failed",
        "invalid_output",
        False,
    )
    assert "the output of step 'a' does not fit its schema: n is string" in ended.failure.message
    assert StepWalk(step).complete('{"n": 1}').outcome == "completed"


def test_what_a_loop_continues_with_is_its_own() -> None:
    loop = AgentLoopStep(id="a", type="think", max_iterations=3, output_schema=NUMBER)
    walk = StepWalk(loop)
    assert isinstance(walk.continue_('"any"'), Task)
    assert walk.complete('"any"').failure.type == "invalid_output"


def test_an_input_that_does_not_fit_fails_the_step_before_it_begins() -> None:
    step = TaskStep(id="b", type="work", after=("a",), input_schema=NUMBER)
    decided = decision(step, {"n": 1}, {"a": {"n": -1}}, {"n": -1})
    assert decided.failure is not None
    assert decided.failure.type == "invalid_input"
    assert "the input of step 'b' does not fit its schema: n is -1" in decided.failure.message
    assert decision(step, {"n": -1}, {"a": {"n": 1}}, {"n": 1}).holds


def test_a_step_that_waits_for_several_is_given_an_object_of_them() -> None:
    both = {"type": "object", "required": ["a", "b"]}
    step = TaskStep(id="c", type="work", after=("a", "b"), input_schema=both)
    plan = plan_of(TaskStep(id="a", type="work"), TaskStep(id="b", type="work"), step)
    walk = RunWalk(plan)
    assert shape_of(plan, walk.run, step) == {"a": "a", "b": "b"}
    assert decision(step, None, {}, {"a": 1, "b": None}).holds


def test_a_condition_that_does_not_hold_is_asked_before_the_input() -> None:
    step = TaskStep(id="a", type="work", when="false", input_schema=NUMBER)
    decided = decision(step, 3, {}, 3)
    assert (decided.holds, decided.failure) == (False, None)


def test_a_result_that_does_not_fit_undoes_what_has_completed_and_fails_the_run() -> None:
    steps = (
        TaskStep(id="a", type="work", compensate="undo"),
        TaskStep(id="undo", type="work"),
    )
    definition = WorkflowDefinition(name="w", steps=steps, output_schema=NUMBER)
    plan = Plan(definition, "h")
    event = RunRequested(workflow="w", definition="h", input=msgspec.Raw(b"1"))
    run = request(plan, event, MOMENT, "main")

    run = apply(plan, run, StepEnded("a", "completed", 0), MOMENT._replace(id="e2"))
    assert progress.to_conclude(plan, run)
    failure = Failure("invalid_output", "no", retryable=False)
    undoing = progress.concluded(plan, run, failure, MOMENT)
    assert (undoing.status, undoing.undoing, undoing.failure) == ("running", "failed", failure)
    assert undoing.steps["undo"].status == "active"
    done = progress.concluded(plan, run, None, MOMENT)
    assert (done.status, done.steps["undo"].status) == ("completed", "skipped")


# ------------------------------------------------------------------ builder, simulation


def _workflow(**fields: Any) -> Workflow:
    workflow = Workflow("w", output=fields.pop("result", None))
    first = workflow.task("first", output=Total)
    workflow.agent_loop("last", max_iterations=2, after=first, **fields)
    return workflow


def _worker(first: Any, last: Any) -> Worker:
    worker = Worker()

    @worker.handler("first")
    async def one(ctx: TaskContext[Any]) -> Any:
        return first

    @worker.handler("last")
    async def two(ctx: LoopContext[Any]) -> Any:
        return ctx.complete(last)

    return worker


@pytest.mark.parametrize(
    ("fields", "first", "last", "reason"),
    [
        ({"input": Total, "output": {"type": "integer"}}, Total(3), 3, ""),
        ({}, {"cents": "none"}, 3, "invalid_output"),
        ({"input": {"properties": {"cents": {"maximum": 2}}}}, Total(3), 3, "invalid_input"),
        ({"output": {"type": "object"}}, Total(3), 3, "invalid_output"),
        ({"result": {"exclusiveMinimum": 3}}, Total(3), 3, "invalid_output"),
        ({"result": int}, Total(3), 3, ""),
    ],
)
def test_a_simulated_run_is_held_to_what_is_declared(
    fields: dict[str, Any], first: Any, last: Any, reason: str
) -> None:
    run = asyncio.run(simulate(_workflow(**fields), None, _worker(first, last)))
    assert (run.status, run.reason) == ("failed" if reason else "completed", reason)


def test_types_are_registered_as_their_schemas() -> None:
    definition = _workflow(input=Total, result=int).build()
    first, last = definition.steps
    assert isinstance(first, TaskStep)
    assert isinstance(last, AgentLoopStep)
    assert first.output_schema == last.input_schema
    assert first.output_schema is not None
    assert "cents" in str(first.output_schema)
    assert definition.output_schema == {"type": "integer"}


def test_a_type_that_has_no_schema_is_a_problem_of_its_field() -> None:
    workflow = Workflow("w", output=type("Opaque", (), {}))
    workflow.task("a", input=type("Opaque", (), {}))
    with pytest.raises(InvalidDefinition) as caught:
        workflow.build()
    paths = {problem.path for problem in caught.value.problems}
    assert paths == {"output_schema", "steps[0].input_schema"}


def test_the_input_of_a_step_that_undoes_another_cannot_be_declared() -> None:
    workflow = Workflow("w")
    workflow.task("a", compensate="undo")
    workflow.task("undo", input=int)
    with pytest.raises(InvalidDefinition, match="its input is not checked"):
        workflow.build()


@pytest.mark.parametrize(
    ("value", "schema", "problem"),
    [
        (0, {"minimum": 1}, "it is 0, and must be at least 1"),
        (3, {"maximum": 2.5}, "it is 3, and must be at most 2.5"),
        (3, {"exclusiveMaximum": 3}, "it is 3, and must be less than 3"),
        (3, {"exclusiveMinimum": 3}, "it is 3, and must be more than 3"),
        ("ab", {"maxLength": 1}, "it is 2 characters, and must be at most 1 characters"),
        ([], {"minItems": 1}, "it is 0 items, and must be at least 1 items"),
        (True, {"minimum": 5}, ""),
        ({}, {"minItems": 5}, ""),
        (3, {"minimum": "five"}, ""),
    ],
)
def test_bounds_are_said_in_words(value: Any, schema: Any, problem: str) -> None:
    assert "".join(problems(value, schema)) == problem
