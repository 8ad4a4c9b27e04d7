"""Every run has one end, which never changes, and nothing starts after it.
Method: any events in any order; each way a run can end by example, the timers without traffic."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Moment, Plan, RunEvent, StepEnded, StepParked, effects, request
from treadle.sdk.definition import AgentLoopStep, SignalStep, TaskStep
from treadle.sdk.messages import CancelRequested, Failure, RunRequested, TimerFired
from treadle.sdk.run import TERMINAL

events = st.lists(st.tuples(own.run_events, st.sampled_from((0, 0, 1, 5_000))), max_size=15)
DEADLINE = TimerFired(kind="run_deadline")


def task(step_id: str, *after: str) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after)


def ended_by(how: str) -> RunWalk:
    walk = RunWalk(plan_of(task("a"), task("b", "a"), timeout_s=10))
    match how:
        case "completed":
            walk.send(StepEnded("a", "completed", 1))
            walk.send(StepEnded("b", "completed", 1))
        case "failed":
            walk.send(StepEnded("a", "failed", 1, Failure("ValueError", "it broke")))
        case "cancelled":
            walk.send(CancelRequested(reason="asked"))
        case _:
            walk.send(DEADLINE, after_ms=10_000)
    return walk


# ------------------------------------------------------------------ one end


@given(own.plans(), events, st.integers(0, 15), st.sampled_from(("cancel", "fail", "time")))
def test_a_terminal_status_never_changes_whatever_follows(
    plan: Plan, sent: list[tuple[RunEvent, int]], at: int, how: str
) -> None:
    walk = RunWalk(plan)
    for event, after_ms in sent[:at]:
        walk.send(event, after_ms=after_ms)
    active = [i for i in walk.run.steps if walk.status(i) in ("active", "parked")]
    if how == "fail" and active:
        walk.send(StepEnded(active[0], "failed", 1, Failure("ValueError")))
    elif how == "time" and walk.run.deadline_ms:
        walk.send(DEADLINE, after_ms=10_000_000)
    else:
        walk.send(CancelRequested())
    end = walk.run
    assert end.is_terminal
    for event, after_ms in sent[at:]:
        assert walk.send(event, after_ms=after_ms) is end


@given(own.plans(), events)
def test_a_run_that_ended_has_no_step_under_way(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    walk = RunWalk(plan)
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
    run = walk.run
    statuses = [entry.status for entry in run.steps.values()]
    assert run.is_terminal == (run.status in TERMINAL) == (run.ended_ms > 0)
    if not run.is_terminal:
        assert {"failed", "cancelled"}.isdisjoint(statuses)
        return
    assert {"active", "parked"}.isdisjoint(statuses)
    if run.status == "completed":
        assert statuses == ["completed"] * len(plan.steps)
        assert run.failure is None
    else:
        assert run.failure is not None
    assert statuses.count("failed") <= 1
    assert (run.failed_step != "") == ("failed" in statuses)


@given(own.plans(), events)
def test_a_run_completes_with_its_last_step(plan: Plan, sent: list[tuple[RunEvent, int]]) -> None:
    walk = RunWalk(plan)
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
    completed = [i for i in plan.steps if walk.status(i) == "completed"]
    if len(completed) == len(plan.steps):
        assert walk.run.status == "completed"


@given(own.plans(), events, own.moments())
def test_no_event_raises_in_any_state(
    plan: Plan, sent: list[tuple[RunEvent, int]], moment: Moment
) -> None:
    walk = RunWalk(plan)
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
        effects.of_document(plan, walk.run)
    assert walk.run.run == moment.run


@given(own.plans(), events, own.run_events)
def test_the_same_event_twice_is_the_same_as_once(
    plan: Plan, sent: list[tuple[RunEvent, int]], event: RunEvent
) -> None:
    walk = RunWalk(plan)
    for earlier, after_ms in sent:
        walk.send(earlier, after_ms=after_ms)
    once = walk.send(event)
    assert walk.send(event, sequence=walk.sequence) is once


# ------------------------------------------------------------------ each way to end


def test_a_completed_run_says_when() -> None:
    walk = ended_by("completed")
    assert (walk.run.status, walk.run.failure, walk.run.failed_step) == ("completed", None, "")
    assert walk.run.ended_ms == walk.now_ms


def test_a_failed_step_fails_the_run_with_its_failure_and_stops_the_others() -> None:
    walk = RunWalk(plan_of(task("a"), task("b"), task("c", "a"), task("d", "b")))
    walk.send(StepEnded("b", "completed", 1))
    run = walk.send(StepEnded("a", "failed", 1, Failure("ValueError", "it broke")), after_ms=40)
    assert (run.status, run.failed_step) == ("failed", "a")
    assert run.failure == Failure("ValueError", "it broke")
    assert [walk.status(i) for i in "abcd"] == ["failed", "completed", "waiting", "cancelled"]
    assert run.steps["d"].ended_ms == run.ended_ms == walk.now_ms
    assert run.steps["a"].failure == run.failure


def test_a_cancelled_run_says_why_and_starts_nothing_more() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a")))
    run = walk.send(CancelRequested(reason="wrong input"), after_ms=40)
    assert run.status == "cancelled"
    assert run.failure == Failure("cancelled", "wrong input", retryable=False)
    assert (walk.status("a"), run.steps["a"].ended_ms) == ("cancelled", walk.now_ms)
    assert walk.send(StepEnded("a", "completed", 1)) is run
    assert walk.status("b") == "waiting"


@pytest.mark.parametrize("step", [SignalStep(id="a", signal="go"), task("a")])
def test_a_run_can_be_cancelled_whatever_it_waits_for(step: SignalStep | TaskStep) -> None:
    walk = RunWalk(plan_of(step))
    walk.send(CancelRequested())
    assert (walk.run.status, walk.status("a")) == ("cancelled", "cancelled")


def test_a_parked_run_can_be_cancelled() -> None:
    loop = AgentLoopStep(id="a", type="think", max_iterations=3, on_limit="park")
    walk = RunWalk(plan_of(loop))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    run = walk.send(CancelRequested(reason="asked"))
    assert (run.status, run.failed_step, run.failure.type) == ("cancelled", "", "cancelled")
    assert walk.status("a") == "cancelled"


@pytest.mark.parametrize("how", ["completed", "failed", "cancelled", "time"])
def test_whatever_comes_after_the_end_comes_too_late(how: str) -> None:
    walk = ended_by(how)
    end = walk.run
    for event in (
        CancelRequested(),
        StepEnded("a", "completed", 1),
        StepEnded("a", "failed", 1, Failure("ValueError")),
        StepParked("a", "max_iterations", 1, "e9", 99),
        DEADLINE,
    ):
        assert walk.send(event, after_ms=60_000) is end


def test_the_second_request_of_a_run_changes_nothing() -> None:
    walk = RunWalk(plan_of(task("a")))
    assert walk.send(RunRequested(workflow="other", definition="h")) is walk.trace[0]


def test_a_run_of_an_unknown_workflow_fails_at_once_and_says_what_to_do() -> None:
    event = RunRequested(workflow="w", definition="h", metadata={"team": "x"})
    run = request(None, event, Moment(own.RUN, "e1", own.EPOCH_MS, 1), "eu")
    assert (run.status, run.failure.type, run.steps) == ("failed", "unknown_workflow", {})
    assert run.failure.retryable is False
    assert "'w' version 'h' is not registered" in run.failure.message
    assert (run.run, run.domain, run.metadata) == (own.RUN, "eu", {"team": "x"})
    assert (run.requested, run.requested_ms, run.ended_ms) == (1, own.EPOCH_MS, own.EPOCH_MS)
    assert effects.of_document(None, run) == ()


# ------------------------------------------------------------------ time


def test_a_run_times_out_with_no_traffic_at_all() -> None:
    walk = RunWalk(plan_of(SignalStep(id="a", signal="go"), timeout_s=0.5))
    assert walk.run.deadline_ms == own.EPOCH_MS + 500
    assert walk.send(DEADLINE, after_ms=499) is walk.trace[0], "not before its time"
    run = walk.send(DEADLINE, after_ms=1)
    assert (run.status, run.failure.type, run.failed_step) == ("failed", "run_timeout", "")
    assert "0.5 s after its request" in run.failure.message
    assert run.failure.retryable is False
    assert walk.status("a") == "cancelled"


def test_a_parked_run_times_out_too() -> None:
    loop = AgentLoopStep(id="a", type="think", max_iterations=3, on_limit="park")
    walk = RunWalk(plan_of(loop, timeout_s=10))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    assert walk.send(DEADLINE, after_ms=10_000).failure.type == "run_timeout"


def test_no_timeout_means_no_deadline() -> None:
    walk = RunWalk(plan_of(task("a")))
    assert walk.send(DEADLINE, after_ms=10**12) is walk.trace[0]


def test_a_signal_that_does_not_come_in_time_fails_the_run() -> None:
    walk = RunWalk(plan_of(task("b"), SignalStep(id="a", signal="go", after=("b",), timeout_s=1)))
    timer = TimerFired(kind="step_deadline", step="a")
    assert walk.send(timer, after_ms=60_000) is walk.trace[0], "it does not wait yet"
    waiting = walk.send(StepEnded("b", "completed", 1))
    assert walk.send(timer, after_ms=999) is waiting
    run = walk.send(timer, after_ms=1)
    assert (run.status, run.failed_step) == ("failed", "a")
    assert run.failure == Failure("timeout", "signal 'go' did not come within 1 s", False)
    assert (run.steps["a"].event, run.steps["a"].iterations) == (f"t{walk.sequence}", 0)


def test_a_signal_in_time_disarms_the_timer() -> None:
    signal = SignalStep(id="a", signal="go", timeout_s=1)
    walk = RunWalk(plan_of(signal, task("b")))
    completed = walk.signal("go")
    assert walk.send(TimerFired(kind="step_deadline", step="a"), after_ms=60_000) is completed


def test_a_signal_without_a_timeout_waits_for_ever() -> None:
    walk = RunWalk(plan_of(SignalStep(id="a", signal="go")))
    timer = TimerFired(kind="step_deadline", step="a")
    assert walk.send(timer, after_ms=10**12) is walk.trace[0]


@pytest.mark.parametrize("step_id", ["b", "unknown", ""])
def test_timers_of_other_steps_are_no_matter_of_the_document(step_id: str) -> None:
    work = TaskStep(id="b", type="work", timeout_s=1)
    walk = RunWalk(plan_of(SignalStep(id="a", signal="go", timeout_s=1), work))
    timer = TimerFired(kind="step_deadline", step=step_id)
    assert walk.send(timer, after_ms=10**9) is walk.trace[0]
