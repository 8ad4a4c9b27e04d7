"""The budget of a run that its loops and those of its children share: who is stopped, and where.
Method: two engines in the simulated world, in any order; each rule by example, without a server."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.core.budgets import of_step, spent
from tests.core.strategies import RUN
from tests.core.walks import RunWalk
from tests.core.world import World

from treadle.engine.core import Plan, StepEnded, budget, children, effects
from treadle.engine.core.bounds import overspent, task_of
from treadle.sdk.children import ParentRun
from treadle.sdk.definition import (
    AgentLoopStep,
    OnLimit,
    Step,
    SubWorkflowStep,
    WorkflowDefinition,
    content_hash,
)
from treadle.sdk.messages import Ended, Inline, Parked, ResumeRequested, Task
from treadle.sdk.run import RunDocument
from treadle.sdk.run_budgets import is_bounded, shared
from treadle.sdk.spending import UNLIMITED, SharedBudget, SpendingLimits, Spent, reached

IN = Inline(msgspec.Raw(b"1"))
counts = st.sampled_from((0, 0, 1, 5, 100))
limits = st.builds(SpendingLimits, tool_calls=counts, total_tokens=counts, cost_micro_usd=counts)
spents = st.builds(Spent, tool_calls=counts, output_tokens=counts, cost_micro_usd=counts)


def plan_of(*steps: Step, **bounds: Any) -> Plan:
    definition = WorkflowDefinition(name="w", steps=steps, **bounds)
    return Plan(definition, content_hash(definition))


def loop(step_id: str, on_limit: OnLimit = "park", **fields: Any) -> AgentLoopStep:
    return AgentLoopStep(id=step_id, type="think", max_iterations=50, on_limit=on_limit, **fields)


def calls(number: int) -> Spent:
    return Spent(tool_calls=number)


# ------------------------------------------------------------------ two engines


@settings(max_examples=40)
@given(
    policies=st.lists(st.sampled_from(("park", "fail", "wrap_up")), min_size=2, max_size=3),
    most=st.integers(1, 8),
    turns=st.lists(st.tuples(st.integers(0, 2), st.integers(1, 9)), min_size=10, max_size=60),
)
def test_loops_together_go_over_by_an_iteration_each_and_by_another_that_was_decided_before(
    policies: list[OnLimit], most: int, turns: list[tuple[int, int]]
) -> None:
    """``World`` asserts that no loop begins two iterations once the budget is used up."""
    steps = [loop(f"s{i}", policy) for i, policy in enumerate(policies)]
    world = World(plan_of(*steps, max_tool_calls=most))
    world.request()
    world.handle_all()
    engines: dict[int, Generator[None, None, None]] = {}
    for turn, points in turns:
        who = turn % len(steps)
        if who not in engines:
            execution = world.take(f"s{who}")
            if execution is None:
                continue
            world.settle(execution, "continue")
            engines[who] = world.engine(list(world.unacked)[-1])
        for _ in range(points):
            if next(engines[who], world) is world:
                del engines[who]
                break
    for engine in engines.values():
        for _ in engine:
            pass
    world.handle_all()
    for _ in range(most + 2):
        for step in steps:
            if isinstance(world.registers[step.id].register, Task):
                execution = world.take(step.id)
                assert execution is not None
                world.settle(execution, "continue")
                world.handle_all()
    world.check()
    assert world.document is not None
    assert world.document.status in ("parked", "failed")
    assert spent(world).tool_calls <= most - 1 + 3 * len(steps)
    if "fail" not in policies and "wrap_up" not in policies:
        assert most <= spent(world).tool_calls <= most - 1 + 2 * len(steps)
        assert all(isinstance(world.registers[step.id].register, Parked) for step in steps)


@given(limits, limits, spents, spents, spents)
def test_a_loop_is_stopped_exactly_when_a_budget_above_it_is_used_up(
    own: SpendingLimits, above: SpendingLimits, mine: Spent, others: Spent, theirs: Spent
) -> None:
    run = RunDocument(run="c", workflow="w", definition="h", limits=own)
    top = RunDocument(run="p", workflow="w", definition="h", limits=above)
    budgets = shared([(run, others), (top, theirs)])
    task = Task(parent="e1", workflow="w", definition="h", input=IN, spent=mine, budgets=budgets)
    is_over = reached(own, mine + others) or reached(above, mine + others + theirs)
    assert overspent(task) == ("run_budget" if is_over else "")


# ------------------------------------------------------------------ where a loop is stopped


def ended_first(**bounds: Any) -> tuple[Plan, RunDocument]:
    walk = RunWalk(
        plan_of(loop("a"), loop("b", "fail", after=("a",)), loop("c", after=("a",)), **bounds)
    )
    walk.send(StepEnded("a", "completed", 1, spent=calls(10)))
    return walk.plan, walk.run


def test_a_budget_that_is_used_up_stops_a_loop_before_it_begins_by_its_own_policy() -> None:
    plan, run = ended_first(max_tool_calls=10)
    budgets = shared([(run, calls(10))])
    failed = effects.first_register(plan, run, plan.work("b"), IN, None, budgets=budgets)
    assert isinstance(failed, Ended)
    assert failed.failure is not None
    assert (failed.failure.type, failed.failure.message) == (
        "run_budget",
        f"the budget of run {RUN!r} was used up after 0 iterations of the loop: "
        "10 of 10 tool calls",
    )
    parked = effects.first_register(plan, run, plan.work("c"), IN, None, budgets=budgets)
    assert isinstance(parked, Parked)
    assert parked.reason == "run_budget"


def test_a_resume_goes_on_once_the_budget_is_raised_and_not_before() -> None:
    world = World(plan_of(loop("a"), max_tool_calls=1))
    world.request()
    world.handle_all()
    execution = world.take("a")
    assert execution is not None
    world.settle(execution, "continue")
    world.handle_all()
    assert isinstance(world.registers["a"].register, Parked)
    world.store(ResumeRequested(add_iterations=1))
    world.handle_all()
    assert isinstance(world.registers["a"].register, Parked)
    world.store(ResumeRequested(step="a", add_spending=SpendingLimits(tool_calls=5)))
    world.handle_all()
    register = world.registers["a"].register
    assert isinstance(register, Task)
    assert register.budgets == of_step(world, "a")
    assert register.budgets[0].limits.tool_calls == 6
    world.redeliver_all()
    world.handle_all()
    assert world.document is not None
    assert world.document.limits.tool_calls == 6, "raised once"


# ------------------------------------------------------------------ who shares it


@pytest.mark.parametrize(
    ("bounds", "above", "detached", "is_bounded"),
    [
        ({"max_cost_usd": 1}, False, False, True),
        ({}, True, False, True),
        ({}, False, False, False),
        ({"max_cost_usd": 1}, True, True, False),
    ],
    ids=["own", "above", "none", "detached"],
)
def test_a_child_shares_the_budgets_above_it_unless_it_is_detached(
    bounds: dict[str, Any], above: bool, detached: bool, is_bounded: bool
) -> None:
    step = SubWorkflowStep(id="c", workflow="child", detached=detached)
    walk = RunWalk(plan_of(step, **bounds))
    parent = ParentRun(run="p", step="s", root="p", bounded=above)
    run = msgspec.structs.replace(walk.run, parent=parent)
    assert children.link(run, step).bounded is is_bounded


def test_a_run_without_a_budget_is_asked_for_nothing() -> None:
    walk = RunWalk(plan_of(loop("a")))
    task = effects.first_task(walk.plan, walk.run, walk.plan.work("a"), IN)
    assert (task.budgets, is_bounded(walk.run)) == ((), False)
    event = ResumeRequested(step="a", add_spending=SpendingLimits(tool_calls=5))
    assert walk.send(event).limits == UNLIMITED


def test_a_register_that_waits_is_told_too() -> None:
    task = Task(parent="e1", workflow="w", definition="h", input=IN)
    parked = Parked(parent="e2", task=task, reason="run_budget", parked_ms=1)
    budgets = (SharedBudget(run="r", limits=SpendingLimits(tool_calls=1), others=calls(1)),)
    for register in (task, parked):
        assert task_of(budget.informed(register, budgets)).budgets == budgets
