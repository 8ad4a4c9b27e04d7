"""A published event completes a step once, and no event that fits is missed or taken twice.
Method: what the core takes of matches in any order; examples; simulated events in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Plan, StepEnded, effects
from treadle.engine.core.waits import used_before
from treadle.sdk import Workflow
from treadle.sdk.definition import EventStep, TaskStep
from treadle.sdk.messages import EventMatched, Failure, TimerFired
from treadle.sdk.testing import Event, SimulatedRun, simulate

BUSY = TaskStep(id="busy", type="work")


def wait(step_id: str, *after: str, event: str = "paid", **fields: Any) -> EventStep:
    return EventStep(id=step_id, after=after, event=event, **fields)


def matched(step: str, published: int = 1, *, request: int = 1) -> EventMatched:
    return EventMatched(step=step, request=request, published=published)


@given(st.lists(own.matches, max_size=8))
def test_the_first_match_of_this_run_completes_the_step_and_no_other_does(
    matches: list[EventMatched],
) -> None:
    walk = RunWalk(plan_of(wait("a"), BUSY))
    is_over = False
    for event in matches:
        before, after = walk.run, walk.send(event)
        if is_over or event.step != "a" or event.request != 1:
            assert after is before
            continue
        is_over = True
        expected = "failed" if event.failure else "completed"
        assert walk.status("a") == expected
        assert after.steps["a"].event == f"e{walk.sequence}"
        assert after.steps["a"].position == (0 if event.failure else event.published)
    assert is_over or walk.status("a") == "active"


def test_two_waits_one_behind_the_other_need_two_events() -> None:
    walk = RunWalk(plan_of(wait("a"), wait("b", "a"), wait("other", "a", event="late"), BUSY))
    walk.send(matched("a", 7))
    before = walk.run
    assert walk.send(matched("b", 7)) is before
    walk.send(matched("b", 8))
    assert walk.status("b") == "completed"


def test_two_waits_side_by_side_may_get_one_event() -> None:
    walk = RunWalk(plan_of(wait("a"), wait("b"), BUSY))
    walk.send(matched("a", 7))
    walk.send(matched("b", 7))
    assert walk.run.steps["a"].position == walk.run.steps["b"].position == 7


@pytest.mark.parametrize("first", ["a", "b"])
def test_a_wait_that_begins_beside_one_before_it_may_get_its_event(first: str) -> None:
    # Behind a quorum: "b" begins with the end of "busy", while "a" still waits.
    behind = wait("b", "a", "busy", quorum=1)
    walk = RunWalk(plan_of(wait("a"), BUSY, behind))
    walk.send(StepEnded("busy", "completed", 1, event="e3", position=3))
    for step_id in (first, {"a": "b", "b": "a"}[first]):
        walk.send(matched(step_id, 7))
    assert walk.run.steps["a"].position == walk.run.steps["b"].position == 7


@given(own.plans(own.FLOW_KINDS), st.lists(own.run_events, max_size=20))
def test_a_wait_is_looked_after_exactly_as_long_as_its_step_waits(
    plan: Plan, events: list[Any]
) -> None:
    walk = RunWalk(plan)
    for event in events:
        walk.send(event)
        commands = effects.of_document(plan, walk.run)
        waiting = {c.step for c in commands if isinstance(c, effects.AwaitEvent)}
        over = {c.step for c in commands if isinstance(c, effects.ForgetWaiter)}
        entries = {s: e for s, e in walk.run.steps.items() if isinstance(plan.steps[s], EventStep)}
        assert waiting == {s for s, e in entries.items() if e.status == "active"}
        assert over == {
            s for s, e in entries.items() if e.status in ("completed", "failed", "cancelled")
        }
        for step_id, entry in entries.items():
            step = plan.steps[step_id]
            assert isinstance(step, EventStep)
            assert not entry.position or entry.position not in used_before(walk.run, step_id)


def test_what_the_match_asks_of_the_run_and_is_not_there_fails_the_step() -> None:
    walk = RunWalk(plan_of(wait("a")))
    failure = Failure("condition", "nothing at 'order'", retryable=False)
    run = walk.send(EventMatched(step="a", request=1, failure=failure))
    assert (run.status, run.failure) == ("failed", failure)


@pytest.mark.parametrize("on_timeout", ["fail", "complete"])
def test_an_event_that_does_not_come_is_an_outcome_like_that_of_a_signal(on_timeout: Any) -> None:
    walk = RunWalk(plan_of(wait("a", timeout_s=2, on_timeout=on_timeout), BUSY))
    run = walk.send(TimerFired(kind="step_deadline", step="a"), after_ms=2_000)
    assert walk.send(matched("a")) is run
    if on_timeout == "complete":
        assert (walk.status("a"), run.steps["a"].position) == ("completed", 0)
    else:
        assert run.failure is not None
        assert run.failure.message == "event 'paid' did not come within 2 s"


def test_a_cancelled_run_waits_for_no_event() -> None:
    from treadle.sdk.messages import CancelRequested

    walk = RunWalk(plan_of(wait("a")))
    run = walk.send(CancelRequested())
    assert run.status == "cancelled"
    assert effects.ForgetWaiter("a") in effects.of_document(walk.plan, run)
    assert walk.send(matched("a")) is run


# ------------------------------------------------------------------ simulated events


def _simulated(workflow: Workflow, input: Any = None, **more: Any) -> SimulatedRun:
    return asyncio.run(simulate(workflow, input, **more))


def test_a_simulated_event_completes_the_step_whose_match_holds() -> None:
    workflow = Workflow("w")
    workflow.wait_for_event("paid", "order.paid", match='event["id"] == input["order"]')
    events = [Event("order.paid", {"id": 1}), Event("order.paid", {"id": 7}, after_s=5)]
    run = _simulated(workflow, {"order": 7}, events=events)
    assert (run.result(), run.elapsed_s) == ({"id": 7}, 5)


def test_a_simulated_event_from_before_the_wait_is_not_missed() -> None:
    workflow = Workflow("w")
    nap = workflow.sleep("nap", 60)
    workflow.wait_for_event("paid", "order.paid", after=nap)
    run = _simulated(workflow, events={"order.paid": 3})
    assert (run.result(), run.elapsed_s) == (3, 60)


def test_a_simulation_without_the_event_says_what_it_waits_for() -> None:
    workflow = Workflow("w")
    workflow.wait_for_event("paid", "order.paid")
    run = _simulated(workflow, events={"order.late": 3})
    assert run.waits_for == ("step 'paid' waits for the event 'order.paid'",)


def test_a_simulated_match_that_no_event_can_fit_fails_the_run() -> None:
    workflow = Workflow("w")
    workflow.wait_for_event("paid", "order.paid", match='event["id"] == input["gone"]')
    run = _simulated(workflow, {})
    assert (run.status, run.reason) == ("failed", "condition")


def test_a_simulated_event_that_does_not_come_in_time_is_null() -> None:
    workflow = Workflow("w")
    workflow.wait_for_event("paid", "order.paid", timeout=5, on_timeout="complete")
    run = _simulated(workflow, events=[Event("order.paid", 1, after_s=6)])
    assert (run.result(), run.elapsed_s) == (None, 5)
    assert msgspec.json.encode(run.step("paid").output) == b"null"


def test_a_simulated_event_that_cancels_ends_the_run_it_fits() -> None:
    workflow = Workflow("w", cancel_on={"order.cancelled": 'event["id"] == input["order"]'})
    workflow.sleep("nap", 60)
    events = [Event("order.cancelled", {"id": n}, after_s=n) for n in (5, 7)]
    run = _simulated(workflow, {"order": 7}, events=events)
    assert (run.status, run.reason, run.elapsed_s) == ("cancelled", "cancelled", 7)
    assert _simulated(workflow, {"order": 8}, events=events).status == "completed"
