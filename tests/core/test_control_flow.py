"""Whose turn it is, with conditions, quorums, handled failures and sleeps.
Method: any facts against any graph, checked by the rules as users read them; each by example."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.turns import OVER, check_turn, status_of
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Plan, RunEvent, StepEnded, effects
from treadle.engine.core.maps import numbers
from treadle.engine.core.turns import turn_of
from treadle.sdk import Workflow
from treadle.sdk.definition import SignalStep, SleepStep, TaskStep, WorkStep
from treadle.sdk.given import failed_before, shape_of
from treadle.sdk.messages import CancelRequested, Failure, PauseRequested, TimerFired
from treadle.sdk.run import UNDER_WAY, has_output
from treadle.sdk.subjects import chunk_id
from treadle.sdk.testing import simulate

events = st.lists(st.tuples(own.run_events, st.sampled_from((0, 0, 1, 5_000))), max_size=15)
plans = own.plans(own.FLOW_KINDS)
BROKEN = Failure("ValueError", "it broke")


def task(step_id: str, *after: str, **fields: object) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after, **fields)  # type: ignore[arg-type]


def walked(plan: Plan, sent: list[tuple[RunEvent, int]]) -> RunWalk:
    walk = RunWalk(plan)
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
    return walk


def statuses(walk: RunWalk) -> dict[str, str]:
    return {step_id: status_of(walk.run, step_id) for step_id in walk.plan.steps}


# ------------------------------------------------------------------ any graph


@given(plans, events)
def test_every_step_that_began_or_was_skipped_had_its_reason(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    for run in walked(plan, sent).trace:
        for step_id in run.steps:
            check_turn(plan, run, step_id)


@given(plans, events)
def test_a_live_run_has_a_step_under_way_and_no_turn_is_missed(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    for run in walked(plan, sent).trace:
        if run.is_terminal:
            continue
        assert any(entry.status in UNDER_WAY for entry in run.steps.values())
        for step_id, step in plan.steps.items():
            is_missed = not run.undoing and turn_of(plan, run, step) != "wait"
            assert step_id in run.steps or not is_missed


@given(plans, events)
def test_a_completed_run_has_every_step_over_and_every_failure_handled(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    run = walked(plan, sent).run
    if run.status != "completed":
        return
    assert {status_of(run, step_id) for step_id in plan.steps} <= OVER
    for step_id, entry in run.steps.items():
        if entry.status == "failed":
            followers = [step for step in plan.definition.steps if step_id in step.after]
            assert plan.steps[step_id].on_failure or all(step.quorum for step in followers)


@given(plans, events, own.run_events)
def test_the_same_event_twice_is_the_same_as_once(
    plan: Plan, sent: list[tuple[RunEvent, int]], event: RunEvent
) -> None:
    walk = walked(plan, sent)
    once = walk.send(event)
    assert walk.send(event, sequence=walk.sequence) is once


@given(plans, events)
def test_what_has_to_be_done_is_done_for_steps_under_way(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    run = walked(plan, sent).run
    commands = effects.of_document(plan, run)
    created = {each.step for each in commands if isinstance(each, effects.CreateRegister)}
    active = {
        step_id
        for step_id, entry in run.steps.items()
        if entry.status == "active" and isinstance(plan.steps[step_id], WorkStep)
    }
    under_way = {
        step_id: {chunk_id(step_id, number) for number in numbers(state.under_way)}
        for step_id, state in run.maps.items()
    }
    for step_id, chunks in under_way.items():
        active |= chunks if run.steps[step_id].status == "active" else set()
    assert created == (set() if run.is_terminal else active)
    ended = {each.step for each in commands if isinstance(each, effects.EndRegister)}
    stopped = {step_id for step_id, entry in run.steps.items() if entry.status == "cancelled"}
    work = {step_id for step_id, step in plan.steps.items() if isinstance(step, WorkStep)}
    halted = [chunks for name, chunks in under_way.items() if run.steps[name].status != "active"]
    assert ended == (stopped & work).union(*halted)


@given(plans, events)
def test_a_run_that_undoes_has_nothing_else_under_way_and_ends_as_it_would_have(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    trace = walked(plan, sent).trace
    undoing = [run for run in trace if run.undoing]
    for run in undoing:
        under_way = {name for name, entry in run.steps.items() if entry.status in UNDER_WAY}
        assert len(under_way) == 1
        assert under_way <= plan.compensations.keys()
        assert run.failure is not None
        assert run.failure == undoing[0].failure
    if undoing and trace[-1].is_terminal and "ended at once" not in str(trace[-1].failure):
        assert trace[-1].status in (undoing[0].undoing, "cancelled")
        assert not trace[-1].undoing


# ------------------------------------------------------------------ conditions


def test_a_condition_that_does_not_hold_skips_the_step_and_what_only_waits_for_it() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a", when="false"), task("c", "b"), task("d", "a")))
    walk.send(StepEnded("a", "completed", 1))
    assert statuses(walk) == {"a": "completed", "b": "skipped", "c": "skipped", "d": "active"}
    assert walk.send(StepEnded("d", "completed", 1)).status == "completed"


def test_branches_meet_again_in_a_step_that_waits_for_both() -> None:
    b, c = task("b", "a", when="true"), task("c", "a", when="false")
    walk = RunWalk(plan_of(task("a"), b, c, task("d", "b", "c")))
    walk.send(StepEnded("a", "completed", 1))
    assert (walk.status("c"), walk.status("d")) == ("skipped", "waiting")
    walk.send(StepEnded("b", "completed", 1))
    assert walk.status("d") == "active"


def test_a_run_of_which_every_step_is_skipped_is_completed() -> None:
    walk = RunWalk(plan_of(task("a", when="false"), task("b", "a")))
    assert (walk.run.status, set(statuses(walk).values())) == ("completed", {"skipped"})


def test_a_condition_that_cannot_be_asked_fails_its_step() -> None:
    walk = RunWalk(plan_of(task("a", when='input["missing"] > 3')))
    assert (walk.run.status, walk.run.failed_step) == ("failed", "a")
    assert walk.run.failure is not None
    assert walk.run.failure.type == "condition"
    assert "missing" in walk.run.failure.message and "write get(input" in walk.run.failure.message


# ------------------------------------------------------------------ quorums


def test_any_of_two_starts_the_step_and_the_other_goes_on() -> None:
    walk = RunWalk(plan_of(task("a"), task("b"), task("c", "a", "b", quorum=1)))
    walk.send(StepEnded("b", "completed", 1))
    assert statuses(walk) == {"a": "active", "b": "completed", "c": "active"}
    walk.send(StepEnded("c", "completed", 1))
    assert walk.run.status == "running"
    walk.send(StepEnded("a", "completed", 1))
    assert walk.run.status == "completed"


def test_two_of_three_bear_one_failure_and_not_two() -> None:
    three = (task("a"), task("b"), task("c"), task("d", "a", "b", "c", quorum=2))
    walk = RunWalk(plan_of(*three))
    walk.send(StepEnded("a", "failed", 1, BROKEN))
    assert walk.run.status == "running"
    run = walk.send(StepEnded("b", "failed", 1, Failure("Second")))
    assert (run.status, run.failed_step, walk.status("c")) == ("failed", "a", "cancelled")
    assert run.failure == BROKEN


def test_a_failure_that_one_follower_cannot_bear_fails_the_run() -> None:
    walk = RunWalk(plan_of(task("a"), task("b"), task("c", "a", "b", quorum=1), task("d", "a")))
    assert walk.send(StepEnded("a", "failed", 1, BROKEN)).status == "failed"


def test_a_quorum_that_skips_leave_open_no_more_is_skipped_too() -> None:
    a, b = task("a", when="false"), task("b", when="false")
    walk = RunWalk(plan_of(a, b, task("c"), task("d", "a", "b", "c", quorum=2)))
    assert statuses(walk) == {"a": "skipped", "b": "skipped", "c": "active", "d": "skipped"}


# ------------------------------------------------------------------ handled failures


def test_a_failure_starts_the_step_that_handles_it_and_skips_what_waits() -> None:
    steps = (task("a", on_failure="h"), task("h"), task("b", "a"), task("c", "b", "h"))
    walk = RunWalk(plan_of(*steps))
    assert statuses(walk)["h"] == "waiting"
    walk.send(StepEnded("a", "failed", 1, BROKEN))
    assert statuses(walk) == {"a": "failed", "h": "active", "b": "skipped", "c": "waiting"}
    given_to = failed_before(walk.plan, walk.run, walk.plan.steps["h"])
    assert given_to is not None
    assert (given_to.step, given_to.failure) == ("a", BROKEN)
    walk.send(StepEnded("h", "completed", 1))
    assert (walk.status("c"), walk.run.status) == ("active", "running")
    assert walk.send(StepEnded("c", "completed", 1)).status == "completed"


def test_without_a_failure_the_step_that_would_handle_it_is_skipped() -> None:
    walk = RunWalk(plan_of(task("a", on_failure="h"), task("b", on_failure="h"), task("h")))
    walk.send(StepEnded("a", "completed", 1))
    assert walk.status("h") == "waiting"
    walk.send(StepEnded("b", "completed", 1))
    assert (walk.status("h"), walk.run.status) == ("skipped", "completed")
    assert failed_before(walk.plan, walk.run, walk.plan.steps["b"]) is None


def test_a_failure_of_the_step_that_handles_one_fails_the_run() -> None:
    walk = RunWalk(plan_of(task("a", on_failure="h"), task("h")))
    walk.send(StepEnded("a", "failed", 1, BROKEN))
    run = walk.send(StepEnded("h", "failed", 1, Failure("Worse")))
    assert (run.status, run.failed_step) == ("failed", "h")


def test_a_signal_that_does_not_come_is_handled_like_any_failure() -> None:
    signal = SignalStep(id="s", signal="go", timeout_s=5, on_failure="h")
    walk = RunWalk(plan_of(signal, task("h")))
    fired = TimerFired(kind="step_deadline", step="s", due_ms=walk.now_ms + 5_000)
    walk.send(fired, after_ms=5_000)
    assert statuses(walk) == {"s": "failed", "h": "active"}


def test_a_signal_that_does_not_come_may_be_an_outcome() -> None:
    signal = SignalStep(id="s", signal="go", timeout_s=5, on_timeout="complete")
    walk = RunWalk(plan_of(signal, task("b", "s")))
    assert not has_output(walk.run, signal)
    walk.send(TimerFired(kind="step_deadline", step="s"), after_ms=5_000)
    assert statuses(walk) == {"s": "completed", "b": "active"}
    assert not has_output(walk.run, signal)
    walk = RunWalk(plan_of(signal, task("b", "s")))
    walk.signal("go")
    assert has_output(walk.run, signal)


# ------------------------------------------------------------------ compensations


def saga(**fields: object) -> RunWalk:
    steps = (
        task("a", compensate="undo-a"),
        task("b", "a", compensate="undo-b"),
        task("c", "b", **fields),
        task("d", "b"),
        task("undo-a"),
        task("undo-b"),
    )
    walk = RunWalk(plan_of(*steps))
    walk.send(StepEnded("a", "completed", 1), after_ms=5)
    walk.send(StepEnded("b", "completed", 1), after_ms=5)
    return walk


def test_a_failed_run_undoes_what_has_completed_newest_first() -> None:
    walk = saga()
    run = walk.send(StepEnded("c", "failed", 1, BROKEN))
    assert (run.status, run.undoing, run.failure, run.failed_step) == (
        "running",
        "failed",
        BROKEN,
        "c",
    )
    assert statuses(walk) == {
        "a": "completed",
        "b": "completed",
        "c": "failed",
        "d": "cancelled",
        "undo-a": "waiting",
        "undo-b": "active",
    }
    commands = effects.of_document(walk.plan, run)
    assert effects.CreateRegister("undo-b") in commands
    assert effects.NotifyCancel("ValueError", "d") in commands, "the others go on"
    walk.send(StepEnded("undo-b", "completed", 1), after_ms=5)
    assert (walk.status("undo-a"), walk.run.status) == ("active", "running")
    end = walk.send(StepEnded("undo-a", "completed", 1))
    assert (end.status, end.failure, end.failed_step, end.undoing) == ("failed", BROKEN, "c", "")


def test_what_has_not_completed_is_not_undone() -> None:
    walk = RunWalk(plan_of(task("a", compensate="undo-a"), task("undo-a"), task("b")))
    run = walk.send(StepEnded("b", "failed", 1, BROKEN))
    assert (run.status, walk.status("a"), walk.status("undo-a")) == (
        "failed",
        "cancelled",
        "waiting",
    )


def test_a_completed_run_skips_what_would_have_undone_it() -> None:
    walk = saga()
    walk.send(StepEnded("c", "completed", 1))
    run = walk.send(StepEnded("d", "completed", 1))
    assert (run.status, walk.status("undo-a"), walk.status("undo-b")) == (
        "completed",
        "skipped",
        "skipped",
    )


def test_a_compensation_that_fails_does_not_keep_the_others_from_running() -> None:
    walk = saga()
    walk.send(StepEnded("c", "failed", 1, BROKEN))
    walk.send(StepEnded("undo-b", "failed", 1, Failure("Worse")))
    assert walk.status("undo-a") == "active"
    end = walk.send(StepEnded("undo-a", "completed", 1))
    assert (end.status, end.failure, walk.status("undo-b")) == ("failed", BROKEN, "failed")


def test_a_cancelled_run_undoes_too_and_a_second_cancel_changes_nothing() -> None:
    walk = saga()
    run = walk.send(CancelRequested(reason="changed my mind"))
    assert (run.status, run.undoing, walk.status("undo-b")) == ("running", "cancelled", "active")
    assert walk.send(CancelRequested(reason="again")) is run


def test_a_failed_run_that_undoes_is_not_cut_off_by_a_cancel() -> None:
    walk = saga()
    undoing = walk.send(StepEnded("c", "failed", 1, BROKEN))
    assert undoing.undoing == "failed"
    assert walk.send(CancelRequested(reason="it looks stuck")) is undoing


def test_a_cancel_ends_the_pause_of_a_run_that_undoes_and_comes_again_without_effect() -> None:
    walk = saga()
    walk.send(PauseRequested())
    held = walk.send(StepEnded("c", "failed", 1, BROKEN))
    assert (held.status, held.undoing, walk.status("undo-b")) == ("paused", "failed", "waiting")
    run = walk.send(CancelRequested())
    assert (run.status, run.undoing, walk.status("undo-b")) == ("running", "failed", "active")
    cancelled = walk.sequence
    paused = walk.send(PauseRequested())
    assert walk.send(CancelRequested(), sequence=cancelled) is paused


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_that_is_cancelled_now_undoes_nothing(fails: bool) -> None:
    walk = saga()
    if fails:
        walk.send(StepEnded("c", "failed", 1, BROKEN))
    end = walk.send(CancelRequested(reason="now", now=True))
    began = "cancelled" if fails else "waiting"
    assert (end.status, end.undoing, walk.status("undo-b"), walk.status("undo-a")) == (
        "cancelled",
        "",
        began,
        "waiting",
    )


def test_a_cancel_that_says_now_ends_what_a_cancel_has_begun_to_undo() -> None:
    walk = saga()
    walk.send(CancelRequested())
    end = walk.send(CancelRequested(reason="now", now=True))
    assert (end.status, walk.status("undo-b"), walk.status("undo-a")) == (
        "cancelled",
        "cancelled",
        "waiting",
    )


def test_a_cancel_that_comes_again_is_no_second_cancel() -> None:
    walk = saga()
    undoing = walk.send(CancelRequested(reason="changed my mind"))
    assert walk.send(CancelRequested(reason="changed my mind"), sequence=walk.sequence) is undoing


def test_a_handled_failure_undoes_nothing() -> None:
    steps = (task("a", compensate="u"), task("u"), task("b", "a", on_failure="h"), task("h"))
    walk = RunWalk(plan_of(*steps))
    walk.send(StepEnded("a", "completed", 1))
    walk.send(StepEnded("b", "failed", 1, BROKEN))
    run = walk.send(StepEnded("h", "completed", 1))
    assert (run.status, walk.status("u")) == ("completed", "skipped")


def test_the_deadline_of_a_run_that_undoes_changes_nothing() -> None:
    plan = plan_of(task("a", compensate="u"), task("u"), task("b", "a"), timeout_s=10)
    walk = RunWalk(plan)
    walk.send(StepEnded("a", "completed", 1))
    run = walk.send(TimerFired(kind="run_deadline"), after_ms=10_000)
    assert (run.undoing, run.failure and run.failure.type) == ("failed", "run_timeout")
    assert walk.send(TimerFired(kind="run_deadline"), after_ms=1) is run
    assert not any(isinstance(each, effects.SetTimer) for each in effects.of_document(plan, run))


def test_what_undoes_is_given_the_output_of_what_it_undoes() -> None:
    walk = saga()
    plan = walk.plan
    assert shape_of(plan, walk.run, plan.steps["undo-b"]) == "b"
    assert shape_of(plan, walk.run, plan.steps["c"]) == "b"


# ------------------------------------------------------------------ sleeps


def sleeping(**fields: object) -> RunWalk:
    sleep = SleepStep(id="s", after=("a",), **fields)  # type: ignore[arg-type]
    walk = RunWalk(plan_of(task("a"), sleep, task("b", "s")))
    walk.send(StepEnded("a", "completed", 1), after_ms=1_000)
    return walk


def test_a_sleep_sets_a_timer_and_completes_when_it_fires() -> None:
    walk = sleeping(duration_s=30)
    (timer,) = effects.of_document(walk.plan, walk.run)
    assert isinstance(timer, effects.SetTimer)
    assert (timer.id, timer.due_ms, timer.event.type) == ("w-s", walk.now_ms + 30_000, "")
    early = walk.run
    assert walk.send(timer.event, after_ms=29_999) is early
    walk.send(timer.event, after_ms=1)
    assert (walk.status("s"), walk.status("b")) == ("completed", "active")
    assert walk.run.steps["s"].ended_ms == walk.now_ms


@pytest.mark.parametrize("until", ["2020-01-31T09:00:00+01:00", "1970-01-01T00:00:00+00:00"])
def test_a_time_that_has_passed_is_no_wait(until: str) -> None:
    walk = sleeping(until=until)
    assert (walk.status("s"), walk.status("b")) == ("completed", "active")


def test_a_sleep_until_a_time_has_its_timer_then() -> None:
    walk = sleeping(until="2033-01-31T09:00:00+01:00")
    (timer,) = effects.of_document(walk.plan, walk.run)
    assert isinstance(timer, effects.SetTimer)
    assert timer.due_ms == 1990771200_000


def test_a_sleep_is_cancelled_with_its_run_and_its_timer_goes() -> None:
    walk = sleeping(duration_s=30)
    walk.send(CancelRequested())
    assert walk.status("s") == "cancelled"
    assert effects.ClearTimers() in effects.of_document(walk.plan, walk.run)


def test_a_simulated_signal_that_does_not_come_in_time_is_null() -> None:
    workflow = Workflow("w")
    workflow.wait_for_signal("go", timeout=5, on_timeout="complete")
    run = asyncio.run(simulate(workflow))
    assert (run.result(), run.elapsed_s) == (None, 5)
