"""A run grows by what its planners have planned: whose turn it is then, and what steps are given.
Method: plans as workers return them against a definition, walked by hand; the lives of whole runs
with planners are in test_any_order."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.planning import PLANS
from tests.core.turns import status_of
from tests.core.walks import RunWalk, StepWalk

from treadle.engine.core import Plan, StepEnded, effects
from treadle.sdk.definition import PlannerStep, Retry, Step, TaskStep, WorkflowDefinition
from treadle.sdk.given import asked_of, failed_before, given_by, shape_of
from treadle.sdk.messages import CancelRequested, Delayed, Ended, Failure
from treadle.sdk.planned import INVALID_PLAN, extended, judged, problems_of_plan

BROKEN = Failure("ValueError", "it broke")
X = {"kind": "task", "id": "x", "type": "work"}
Y = {"kind": "task", "id": "y", "type": "work", "after": ["x"]}


def task(step_id: str, *after: str, **fields: object) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after, **fields)  # type: ignore[arg-type]


def planner(step_id: str = "p", *after: str, **fields: object) -> PlannerStep:
    fields = {"max_depth": 1, **fields}
    return PlannerStep(id=step_id, type="plan", after=after, **fields)  # type: ignore[arg-type]


class Planned(RunWalk):
    """A run whose planners plan what they are told to."""

    def __init__(self, *steps: Step) -> None:
        definition = WorkflowDefinition(name="w", steps=steps)
        super().__init__(Plan(definition, "h"))

    def plans(self, step_id: str, *steps: object, **fields: object) -> None:
        """A planner completes with a plan."""
        output = json.dumps({"steps": steps, **fields}).encode()
        step = self.plan.steps[step_id]
        assert isinstance(step, PlannerStep)
        assert not problems_of_plan(step, output)
        definition, plans = extended(self.plan.definition, {step_id: output})
        self.plan = Plan(definition, "h", {**self.plan.plans, **plans})
        self.ends(step_id)

    def ends(self, *step_ids: str) -> None:
        for step_id in step_ids:
            self.send(StepEnded(step_id, "completed", 1), after_ms=1)

    def fails(self, step_id: str) -> None:
        self.send(StepEnded(step_id, "failed", 1, BROKEN), after_ms=1)

    def at(self, *step_ids: str) -> list[str]:
        return [status_of(self.run, step_id) for step_id in step_ids]


# ------------------------------------------------------------------ whose turn it is


def test_the_first_steps_of_a_plan_wait_for_the_planner_and_what_follows_for_the_last() -> None:
    walk = Planned(planner(), task("after", "p"))
    walk.plans("p", X, Y, {**X, "id": "z"})
    assert walk.at("p--x", "p--y", "p--z", "after") == ["active", "waiting", "active", "waiting"]
    walk.ends("p--x", "p--z")
    assert walk.at("p--y", "after") == ["active", "waiting"]
    walk.ends("p--y")
    assert walk.at("after") == ["active"]
    walk.ends("after")
    assert walk.run.status == "completed"


def test_an_empty_plan_is_over_at_once() -> None:
    walk = Planned(planner(), task("after", "p"))
    walk.plans("p")
    assert walk.at("after") == ["active"]
    assert shape_of(walk.plan, walk.run, walk.plan.steps["after"]) == {}


def test_a_run_ends_with_the_plan_of_its_last_step() -> None:
    walk = Planned(planner())
    walk.plans("p", X)
    assert walk.run.status == "running"
    walk.ends("p--x")
    assert walk.run.status == "completed"


def test_what_waits_for_a_planner_waits_for_the_plans_in_its_plan() -> None:
    walk = Planned(planner(), task("after", "p"))
    walk.plans("p", {"kind": "planner", "id": "q", "type": "plan", "max_steps": 3}, X)
    walk.ends("p--x")
    walk.plans("p--q", Y | {"after": []})
    assert walk.at("p--q--y", "after") == ["active", "waiting"]
    walk.ends("p--q--y")
    assert walk.at("after") == ["active"]


def test_a_failure_in_a_plan_that_nothing_handles_fails_the_run() -> None:
    walk = Planned(planner(), task("after", "p"))
    walk.plans("p", X, Y)
    walk.fails("p--x")
    assert (walk.run.status, walk.run.failed_step) == ("failed", "p--x")


def test_a_planner_handles_the_failures_in_its_plan() -> None:
    walk = Planned(planner(on_failure="h"), task("after", "p"), task("h"))
    walk.plans("p", X, Y, {**X, "id": "z"})
    walk.fails("p--x")
    assert walk.at("p--y", "p--z", "h", "after") == ["skipped", "active", "waiting", "waiting"]
    walk.ends("p--z")
    assert walk.at("h", "after") == ["active", "skipped"]
    failed = failed_before(walk.plan, walk.run, walk.plan.steps["h"])
    assert failed is not None
    assert (failed.step, failed.failure) == ("p--x", BROKEN)
    walk.ends("h")
    assert walk.run.status == "completed"


def test_a_quorum_bears_the_failure_of_a_plan() -> None:
    walk = Planned(planner(), task("b"), task("after", "p", "b", quorum=1))
    walk.plans("p", X)
    walk.fails("p--x")
    assert walk.at("after") == ["waiting"]
    walk.ends("b")
    assert walk.at("after") == ["active"]


def test_a_quorum_that_a_failed_plan_keeps_from_being_met_fails_with_that_failure() -> None:
    walk = Planned(planner(), task("b"), task("after", "p", "b", quorum=2))
    walk.plans("p", X)
    walk.fails("p--x")
    assert (walk.run.status, walk.run.failed_step) == ("failed", "p--x")


def test_a_plan_handles_its_own_failures() -> None:
    walk = Planned(planner(), task("after", "p"))
    walk.plans("p", X | {"on_failure": "h"}, {**X, "id": "h"})
    walk.fails("p--x")
    walk.ends("p--h")
    assert walk.at("after") == ["active"]
    assert shape_of(walk.plan, walk.run, walk.plan.steps["after"]) == "p--h"


def test_a_plan_of_which_everything_is_skipped_is_skipped() -> None:
    walk = Planned(planner(), task("after", "p"))
    walk.plans("p", X | {"when": "false"})
    assert walk.at("p--x", "after") == ["skipped", "skipped"]


def test_the_steps_of_a_plan_are_undone_before_the_planner() -> None:
    walk = Planned(planner(compensate="u"), task("u"), task("after", "p"))
    walk.plans("p", X | {"compensate": "u"}, {**X, "id": "u"})
    walk.ends("p--x")
    walk.fails("after")
    assert walk.at("p--u", "u") == ["active", "waiting"]
    assert shape_of(walk.plan, walk.run, walk.plan.steps["p--u"]) == "p--x"
    walk.ends("p--u")
    assert walk.at("u") == ["active"]


def test_a_cancelled_run_ends_the_steps_of_its_plans() -> None:
    walk = Planned(planner())
    walk.plans("p", X)
    run = walk.send(CancelRequested())
    ended = [c.step for c in effects.of_document(walk.plan, run) if hasattr(c, "failure")]
    assert ended == ["p--x"]


# ------------------------------------------------------------------ what steps are given


def test_steps_are_given_outputs_by_the_ids_of_their_plan() -> None:
    walk = Planned(task("a"), planner("p", "a"), task("after", "p"))
    walk.ends("a")
    z = {**X, "id": "z", "after": ["x", "y"], "when": 'steps["x"] == null'}
    inputs = {"y": {"n": 1}, "z": 2}
    walk.plans("p", X, Y | {"after": []}, z, {**X, "id": "last", "after": ["x"]}, inputs=inputs)
    walk.ends("p--x", "p--y", "p--z", "p--last")
    shapes = {name: shape_of(walk.plan, walk.run, step) for name, step in walk.plan.steps.items()}
    assert shapes["p--x"] == "a", "the first steps are given what the planner was"
    assert shapes["p--y"] == "=p--y"
    assert shapes["p--z"] == {"input": "=p--z", "steps": {"x": "p--x", "y": "p--y"}}
    assert shapes["p--last"] == "p--x"
    assert shapes["after"] == {"z": "p--z", "last": "p--last"}
    assert given_by(walk.plan, "=p--y") == b'{"n":1}'
    assert asked_of(walk.plan, walk.run, walk.plan.steps["p--z"]) == {"x": "p--x", "y": "p--y"}
    assert asked_of(walk.plan, walk.run, walk.plan.steps["p--x"]) == {}


def test_among_others_the_result_of_a_plan_has_the_id_of_its_planner() -> None:
    walk = Planned(planner(), task("b"), task("after", "p", "b"))
    walk.plans("p", X)
    walk.ends("p--x", "b")
    assert shape_of(walk.plan, walk.run, walk.plan.steps["after"]) == {"p": "p--x", "b": "b"}


# ------------------------------------------------------------------ one and the same plan


@given(st.permutations(["p", "q"]), st.sampled_from(PLANS[:3]), st.sampled_from(PLANS[:3]))
def test_plans_are_the_same_in_whatever_order_they_came(
    order: list[str], one: str, other: str
) -> None:
    definition = WorkflowDefinition(name="w", steps=(planner("p"), planner("q"), task("a", "p")))
    outputs = {"p": one.encode(), "q": other.encode()}
    at_once = extended(definition, outputs)
    grown = definition
    for step_id in order:
        grown = extended(grown, {step_id: outputs[step_id]}).definition
    assert grown == at_once.definition


# ------------------------------------------------------------------ unsound plans


def test_an_unsound_plan_is_a_failure_that_is_tried_again_with_the_reasons() -> None:
    step = planner("a", retry=Retry(max_attempts=2, delay_s=1.0))
    walk = StepWalk(step)
    again = walk.complete('{"steps": [{"kind": "task", "id": "x"}]}')
    assert isinstance(again, Delayed)
    assert again.task.last_failure is not None
    assert again.task.last_failure.type == INVALID_PLAN
    assert "steps[0].type" in again.task.last_failure.message
    walk.due(after_ms=60_000)
    end = walk.complete('{"steps": []}')
    assert isinstance(end, Ended)
    assert end.outcome == "completed"


def test_an_unsound_plan_without_an_attempt_left_fails_the_step() -> None:
    walk = StepWalk(planner("a"))
    end = walk.complete("[]")
    assert isinstance(end, Ended)
    assert (end.outcome, end.failure and end.failure.type) == ("failed", INVALID_PLAN)


@pytest.mark.parametrize("output", PLANS)
def test_only_plans_of_planners_are_judged(output: str) -> None:
    walk = StepWalk(task("a"))
    end = walk.complete(output)
    assert isinstance(end, Ended)
    assert end.outcome == "completed"
    assert end.output == msgspec.Raw(output.encode())
    assert judged(None, end) is end  # type: ignore[arg-type,comparison-overlap]
