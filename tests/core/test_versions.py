"""A loop that follows its workflow takes the newest version between two iterations, and not within.
Method: registers and two versions of a step; whole lives are in test_any_order, and virtual time
shows what handlers see."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own

from treadle.engine.core import Moment, Placed, Plan, advance, effects, is_live, request
from treadle.engine.core.bounds import task_of
from treadle.engine.core.versions import adopted, is_boundary
from treadle.sdk import Workflow
from treadle.sdk.definition import AgentLoopStep, TaskStep, WorkflowDefinition, content_hash
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Inline,
    Parked,
    Register,
    ResumeRequested,
    RunRequested,
    Sleeping,
    StepContinued,
    Task,
)
from treadle.sdk.testing import Version, simulate
from treadle.sdk.versions import successor, why_it_stays
from treadle.worker import LoopContext, Worker

OLD = AgentLoopStep(id="a", type="think", max_iterations=5, max_duration_s=60)
ONE = {"step": "a", "type": "think", "token": 1, "head": 1}


def newer(**fields: Any) -> AgentLoopStep:
    return msgspec.structs.replace(OLD, **fields)


def following(task: Task) -> Task:
    return msgspec.structs.replace(task, follows=True)


def first(step: AgentLoopStep = OLD, policy: str = "latest") -> Task:
    definition = WorkflowDefinition(name="w", steps=(step,), version_policy="latest")
    plan = Plan(definition, "v1")
    event = RunRequested(workflow="w", definition="v1", version_policy=policy)  # type: ignore[arg-type]
    run = request(plan, event, Moment("r", "e1", 1_000, 1), "main")
    return effects.first_task(plan, run, step, Inline(msgspec.Raw(b"null")))


# ------------------------------------------------------------------ what changes


def test_a_run_follows_if_the_workflow_or_its_start_says_so() -> None:
    assert first(policy="").follows
    assert first(policy="latest").follows
    assert not first(policy="pin").follows


def test_the_next_iteration_is_under_the_newest_version_with_its_bounds() -> None:
    new = newer(
        max_iterations=9, timeout_s=3, max_duration_s=10, budget_warn_at=4, max_tool_calls=7
    )
    task = adopted(first(), OLD, new, "v2")
    assert isinstance(task, Task)
    assert (task.definition, task.max_iterations, task.timeout_ms) == ("v2", 9, 3_000)
    assert (task.deadline_ms, task.budget_warn_at, task.limits.tool_calls) == (11_000, 4, 7)


def test_bounds_that_somebody_has_raised_stay_raised_by_as_much() -> None:
    raised = msgspec.structs.replace(first(), max_iterations=15, deadline_ms=1_000 + 90_000)
    task = adopted(raised, OLD, newer(max_iterations=3, max_duration_s=20), "v2")
    assert isinstance(task, Task)
    assert (task.max_iterations, task.deadline_ms) == (13, 1_000 + 50_000)


@pytest.mark.parametrize(("new_s", "deadline_ms"), [(0, 0), (20, 21_000)])
def test_a_bound_is_dropped_or_begun(new_s: float, deadline_ms: int) -> None:
    old = newer(max_duration_s=60 if not new_s else 0)
    task = adopted(first(old), old, newer(max_duration_s=new_s), "v2")
    assert task_of(task).deadline_ms == deadline_ms


@given(own.loop_steps(), own.loop_steps(), st.data())
def test_what_was_committed_and_spent_stays_whatever_the_version(
    old: AgentLoopStep, new: AgentLoopStep, data: st.DataObject
) -> None:
    register = data.draw(own.live_registers(old))
    found = adopted(register, old, new, "v2")
    before, after = task_of(register), task_of(found)
    assert type(found) is type(register)
    kept = ("parent", "iteration", "attempt", "failures", "losses", "input", "checkpoint", "spent")
    assert [getattr(before, name) for name in kept] == [getattr(after, name) for name in kept]
    assert after.max_iterations >= 1
    back = task_of(adopted(found, new, old, before.definition))
    if before.max_iterations == old.max_iterations:
        assert back.max_iterations == before.max_iterations, "there and back again"


# ------------------------------------------------------------------ when


def boundaries(register: Register) -> tuple[bool, bool]:
    assert is_live(register)
    resume = ResumeRequested()
    return is_boundary(register, StepContinued(**ONE)), is_boundary(register, resume)


def test_an_iteration_keeps_its_version_whatever_becomes_of_its_attempts() -> None:
    task = following(first())
    again = msgspec.structs.replace(task, attempt=2)
    assert boundaries(task) == (True, False)
    for held in (Delayed, Sleeping):
        assert boundaries(held(parent="e2", task=task, due_ms=1)) == (True, True)
        assert boundaries(held(parent="e2", task=again, due_ms=1)) == (False, False)
    parked = Parked(parent="e2", task=task, reason="max_iterations", parked_ms=1)
    assert boundaries(parked)[1]
    assert not boundaries(msgspec.structs.replace(parked, task=again))[1]
    wrapping = msgspec.structs.replace(task, wrap_up="max_iterations")
    assert boundaries(wrapping) == (False, False)
    assert boundaries(first(policy="pin")) == (False, False)


def test_a_raised_bound_lets_the_loop_go_on_and_a_lowered_one_stops_it() -> None:
    done = StepContinued(**ONE, output=msgspec.Raw(b"1"))
    for most, kind in ((9, Task), (1, Ended)):
        new = newer(max_iterations=most)
        task = adopted(first(), OLD, new, "v2")
        now = advance(new, Placed(1, task), done, Moment("r", "e2", 2_000, 2))
        assert isinstance(now, kind)


# ------------------------------------------------------------------ which step


def test_a_loop_stays_if_the_newest_version_has_no_such_loop() -> None:
    def version(*steps: Any) -> WorkflowDefinition:
        return WorkflowDefinition(name="w", steps=steps)

    assert successor(version(OLD), "a", "think") is OLD
    for steps, told in (
        ((TaskStep(id="b", type="t"),), "has no step 'a'"),
        ((TaskStep(id="a", type="think"),), "has it as a task"),
        ((newer(type="other"),), "has it with task type 'other', which other workers serve"),
    ):
        assert successor(version(*steps), "a", "think") is None
        text = why_it_stays(version(*steps), "v2", "a", "think")
        assert text == f"the newest version of its workflow, v2, {told}"
    assert why_it_stays(version(OLD), "v2", "a", "think") == ""


# ------------------------------------------------------------------ in virtual time


def workflow(most: int, policy: Any = "latest", **fields: Any) -> Workflow:
    made = Workflow("w", version_policy=policy)
    made.agent_loop("think", max_iterations=most, loop_delay=1, **fields)
    return made


def looping(last: int) -> Worker:
    worker = Worker()

    @worker.handler("think")
    async def think(ctx: LoopContext[Any]) -> Any:
        return ctx.complete(ctx.iteration) if ctx.iteration == last else ctx.continue_(None)

    return worker


@pytest.mark.parametrize(
    ("policy", "most", "then", "status", "iterations"),
    [
        ("latest", 3, 10, "completed", 8),
        ("pin", 3, 10, "failed", 3),
        ("latest", 10, 2, "failed", 2),
        ("pin", 10, 2, "completed", 8),
    ],
)
def test_a_version_that_is_registered_meanwhile_is_taken_or_not(
    policy: str, most: int, then: int, status: str, iterations: int
) -> None:
    versions = [Version(workflow(then, policy), 0.5)]
    run = asyncio.run(simulate(workflow(most, policy), None, looping(7), versions=versions))
    assert (run.status, run.step("think").iterations) == (status, iterations)


def test_a_loop_that_begins_later_begins_with_the_newest_version() -> None:
    def later(most: int) -> Workflow:
        made = Workflow("w", version_policy="latest")
        nap = made.sleep("nap", 10)
        made.agent_loop("think", max_iterations=most, after=nap)
        return made

    run = asyncio.run(simulate(later(1), None, looping(2), versions=[Version(later(5), 1)]))
    assert run.status == "completed"


def test_the_policy_is_part_of_the_version_and_pinned_ones_stay_what_they_are() -> None:
    pinned = Workflow("w")
    pinned.task("a")
    latest = Workflow("w", version_policy="latest")
    latest.task("a")
    assert content_hash(pinned.build()) != content_hash(latest.build())
    plain = WorkflowDefinition(name="w", steps=(TaskStep(id="a", type="a"),))
    assert content_hash(pinned.build()) == content_hash(plain)
