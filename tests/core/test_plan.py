"""The index of a definition answers what the core asks of it, in the order it was written.
Method: one graph by example, and every graph against the definition itself."""

from __future__ import annotations

import pytest
from hypothesis import given
from tests.core import strategies as own
from tests.core.walks import plan_of

from treadle.engine.core import Plan
from treadle.sdk.definition import SignalStep, TaskStep, content_hash


def task(step_id: str, *after: str) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after)


def test_a_diamond_has_one_root() -> None:
    plan = plan_of(task("d", "b", "c"), task("b", "a"), task("a"), task("c", "a"))
    assert [step.id for step in plan.roots] == ["a"]
    assert [step.id for step in plan.followers["a"]] == ["b", "c"]
    assert [step.id for step in plan.followers["b"]] == ["d"]
    assert plan.followers["d"] == ()


@given(own.plans())
def test_edges_are_seen_from_both_ends(plan: Plan) -> None:
    steps = plan.definition.steps
    assert plan.hash == content_hash(plan.definition)
    assert list(plan.steps.values()) == list(steps)
    for step in steps:
        assert plan.followers[step.id] == tuple(s for s in steps if step.id in s.after)
        assert (step in plan.roots) == (step.after == ())


def test_work_is_what_workers_execute() -> None:
    plan = plan_of(task("a"), SignalStep(id="s", signal="go"))
    assert plan.work("a") == task("a")
    for step_id in ("s", "unknown"):
        with pytest.raises(KeyError, match=step_id):
            plan.work(step_id)
