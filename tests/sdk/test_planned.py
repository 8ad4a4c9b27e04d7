"""A plan is judged like a workflow, within the bounds of its planner, all of its faults at once.
Method: outputs of planners, sound and with one fault each, and the paths of what is told; any
JSON at all; what is accepted is read as it was judged."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.sdk.strategies import QUICK, definitions, json_values

from treadle.sdk.definition import MapStep, PlannerStep, WorkflowDefinition, to_plain
from treadle.sdk.limits import PLANNED_INPUT_BYTES_MAX
from treadle.sdk.messages import StepCompleted, StepFailed
from treadle.sdk.planned import PROBLEMS_CHARS_MAX, extended, judged, planned, problems_of_plan
from treadle.sdk.validation import problems_of

P = PlannerStep(id="plan", type="plan", max_steps=4, max_depth=1, allowed_tasks=("fetch", "read"))
FETCH = {"kind": "task", "id": "fetch", "type": "fetch"}
READ = {"kind": "task", "id": "read", "type": "read", "after": ["fetch"]}
NESTED = {"kind": "planner", "id": "more", "type": "read", "max_steps": 1}


def _paths(plan: object, planner: PlannerStep = P) -> list[str]:
    return [problem.path for problem in problems_of_plan(planner, json.dumps(plan).encode())]


def _steps(*steps: object, **fields: object) -> dict[str, object]:
    return {"steps": list(steps), **fields}


@pytest.mark.parametrize(
    "plan",
    [
        _steps(),
        _steps(FETCH),
        _steps(FETCH, READ, inputs={"fetch": {"url": "x"}, "read": None}),
        _steps(FETCH, NESTED, {"kind": "sleep", "id": "nap", "duration_s": 1}),
    ],
)
def test_a_sound_plan_is_taken(plan: object) -> None:
    assert _paths(plan) == []


@pytest.mark.parametrize(
    ("plan", "paths"),
    [
        ([], ["plan"]),
        (None, ["plan"]),
        ({}, ["steps"]),
        ({"steps": "fetch"}, ["steps"]),
        (_steps(FETCH, stepz=1), ["stepz"]),
        (_steps({**FETCH, "type": None}), ["steps[0].type"]),
        (_steps(READ), ["steps[0].after[0]"]),
        (_steps(FETCH, FETCH), ["steps[1].id"]),
        (_steps({**FETCH, "id": "x" * 59}), ["steps[0].id"]),
        (_steps({**FETCH, "type": "delete"}), ["steps[0].type"]),
        (_steps({**FETCH, "when": 'steps["plan"]'}), ["steps[0].when"]),
        (_steps(*({**FETCH, "id": f"f{i}"} for i in range(5))), ["steps"]),
        (_steps(FETCH, {**NESTED, "max_steps": 3}), ["steps"]),
        (_steps({**NESTED, "max_depth": 1}), ["steps[0].max_depth"]),
        (_steps({**NESTED, "allowed_tasks": ["fetch", "rm"]}), ["steps[0].allowed_tasks[1]"]),
        (_steps(NESTED, {**FETCH, "id": "more--x"}), ["steps[1].id"]),
        (_steps(FETCH, inputs=[]), ["inputs"]),
        (_steps(FETCH, inputs={"read": 1}), ["inputs.read"]),
        (_steps(inputs={"read": 1}), ["inputs.read"]),
        (_steps(FETCH, inputs={"fetch": "x" * PLANNED_INPUT_BYTES_MAX}), ["inputs.fetch"]),
        (
            _steps({**FETCH, "on_failure": "h"}, {**FETCH, "id": "h"}, inputs={"h": 1}),
            ["inputs.h"],
        ),
        (_steps(READ, {**FETCH, "id": "a.b"}, x=1), ["steps[0].after[0]", "steps[1].id", "x"]),
        (_steps(READ, {**FETCH, "type": "rm", "id": "b"}), ["steps[0].after[0]", "steps[1].type"]),
    ],
)
def test_each_fault_is_told_with_its_path(plan: object, paths: list[str]) -> None:
    assert _paths(plan) == paths


def test_a_planner_without_depth_plans_no_planners() -> None:
    shallow = msgspec.structs.replace(P, max_depth=0)
    assert _paths(_steps(NESTED), shallow) == ["steps[0].kind"]


def test_a_planner_in_a_plan_may_use_no_other_tasks() -> None:
    (nested,) = planned(P, json.dumps(_steps(NESTED)).encode()).steps
    assert isinstance(nested, PlannerStep)
    assert nested.allowed_tasks == P.allowed_tasks


@QUICK
@given(json_values)
def test_whatever_a_planner_returns_is_judged_and_read(value: Any) -> None:
    raw = msgspec.json.encode(value)
    for output in (raw, msgspec.json.encode({"steps": value, "inputs": value}), raw[:-1], b"["):
        told = problems_of_plan(P, output)
        assert all(problem.path and problem.text for problem in told)
        planned(P, output)


def _with_lists_named(definition: WorkflowDefinition) -> WorkflowDefinition:
    """Maps keep the names of the plan too: name the step whose list is meant as the run does."""
    steps = tuple(
        msgspec.structs.replace(
            step, over=next((x for x in step.after if x == f"p--{step.over}"), step.over)
        )
        if isinstance(step, MapStep)
        else step
        for step in definition.steps
    )
    return msgspec.structs.replace(definition, steps=steps)


@QUICK
@given(definitions(max_steps=4), st.integers(0, 3))
def test_a_run_with_a_sound_plan_is_a_sound_workflow(
    definition: WorkflowDefinition, depth: int
) -> None:
    planner = PlannerStep(id="p", type="plan", max_steps=999, max_depth=depth)
    output = msgspec.json.encode({"steps": to_plain(definition)["steps"]})
    if problems_of_plan(planner, output):
        return
    base = WorkflowDefinition(name="w", steps=(planner,))
    found = extended(base, {"p": output}).definition
    assert len(found.steps) == 1 + len(definition.steps)
    # Conditions keep the names of the plan, and the ids of planners are in front of others.
    told = [problem.text for problem in problems_of(_with_lists_named(found))]
    assert all("begin with" in text or "steps[" in text or "max_steps" in text for text in told)


def test_what_is_told_of_a_plan_is_bounded() -> None:
    plan = _steps(*({"kind": "x"} for _ in range(500)))
    event = StepCompleted(
        step="plan", type="plan", token=1, head=1, output=msgspec.Raw(json.dumps(plan).encode())
    )
    failed = judged(P, event)
    assert isinstance(failed, StepFailed)
    assert len(failed.failure.message) < PROBLEMS_CHARS_MAX + 100
    assert failed.failure.message.startswith("the plan has 1001 problems")
