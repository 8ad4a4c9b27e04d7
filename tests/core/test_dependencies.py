"""Steps start when, and only when, everything they wait for has completed.
Method: any facts against any graph; the shapes of a graph by example."""

from __future__ import annotations

import itertools

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import RunWalk, plan_of

from treadle.engine.core import Plan, RunEvent, StepEnded, StepParked, StepResumed
from treadle.sdk.definition import AgentLoopStep, TaskStep
from treadle.sdk.messages import Failure, ResumeRequested
from treadle.sdk.run import RunDocument, StepEntry

events = st.lists(st.tuples(own.run_events, st.sampled_from((0, 0, 1, 5_000))), max_size=15)


def task(step_id: str, *after: str) -> TaskStep:
    return TaskStep(id=step_id, type="work", after=after)


def walked(plan: Plan, sent: list[tuple[RunEvent, int]]) -> RunWalk:
    walk = RunWalk(plan)
    for event, after_ms in sent:
        walk.send(event, after_ms=after_ms)
    return walk


@given(own.plans(), events)
def test_no_step_starts_before_everything_it_waits_for_has_completed(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    for run in walked(plan, sent).trace:
        for step_id in run.steps:
            for before in plan.steps[step_id].after:
                assert run.steps[before].status == "completed"


@given(own.plans(), events)
def test_every_step_that_may_start_has_started(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    walk = walked(plan, sent)
    # A paused run starts nothing until it is resumed.
    run = walk.send(ResumeRequested()) if walk.run.is_paused else walk.run
    if run.is_terminal:
        return
    completed = {step_id for step_id, entry in run.steps.items() if entry.status == "completed"}
    ready = {step.id for step in plan.definition.steps if completed.issuperset(step.after)}
    assert ready == set(run.steps)


@given(own.plans(), events)
def test_a_step_starts_once_and_a_completed_one_stays_as_it_is(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    trace = walked(plan, sent).trace
    for earlier, later in itertools.pairwise(trace):
        for step_id, entry in earlier.steps.items():
            assert later.steps[step_id].started_ms == entry.started_ms
            if entry.status in ("completed", "failed", "cancelled"):
                assert later.steps[step_id] is entry


@given(own.plans(), events)
def test_a_run_is_parked_when_a_step_is_and_none_is_active(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    for run in walked(plan, sent).trace:
        if run.is_terminal:
            continue
        statuses = {entry.status for entry in run.steps.values()}
        is_parked = "parked" in statuses and "active" not in statuses
        shown = "parked" if is_parked else "running"
        assert run.status == ("paused" if run.is_paused else shown)
        assert (run.failure is not None) == is_parked
        assert (run.failed_step != "") == is_parked


@given(own.plans(), events)
def test_a_document_is_read_back_as_it_was_written(
    plan: Plan, sent: list[tuple[RunEvent, int]]
) -> None:
    run = walked(plan, sent).run
    assert msgspec.json.decode(msgspec.json.encode(run), type=RunDocument) == run


# ------------------------------------------------------------------ shapes


def test_a_requested_run_starts_its_first_steps() -> None:
    walk = RunWalk(plan_of(task("c", "a"), task("a"), task("b")))
    assert walk.run.steps == {
        step_id: StepEntry(status="active", started_ms=walk.now_ms, event="e1")
        for step_id in ("a", "b")
    }
    assert walk.run.status == "running"
    assert (walk.run.workflow, walk.run.definition) == ("w", walk.plan.hash)
    assert (walk.run.requested, walk.run.requested_ms) == (1, walk.now_ms)
    assert walk.run.deadline_ms == 0


def test_a_chain_runs_in_order() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a"), task("c", "b")))
    for step_id in ("a", "b", "c"):
        assert walk.status(step_id) == "active"
        walk.send(StepEnded(step_id, "completed", 1), after_ms=10)
        assert walk.run.steps[step_id].ended_ms == walk.now_ms
    assert walk.run.status == "completed"


def test_a_fan_out_starts_together_and_a_fan_in_waits_for_the_last() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a"), task("c", "a"), task("d", "b", "c")))
    walk.send(StepEnded("a", "completed", 1))
    assert (walk.status("b"), walk.status("c"), walk.status("d")) == ("active", "active", "waiting")
    walk.send(StepEnded("c", "completed", 1))
    assert walk.status("d") == "waiting"
    walk.send(StepEnded("b", "completed", 1), after_ms=7)
    assert walk.run.steps["d"] == StepEntry(
        status="active", started_ms=walk.now_ms, event=f"e{walk.sequence}"
    )


def test_a_completed_step_tells_what_it_took() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a")))
    walk.send(StepEnded("a", "completed", 4, event="e9", position=17), after_ms=30)
    assert walk.run.steps["a"] == StepEntry(
        status="completed",
        iterations=4,
        started_ms=own.EPOCH_MS,
        ended_ms=own.EPOCH_MS + 30,
        event="e9",
        position=17,
    )


def test_the_end_of_a_step_counts_once() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a")))
    once = walk.send(StepEnded("a", "completed", 1))
    assert walk.send(StepEnded("a", "completed", 1)) is once
    failure = Failure("ValueError")
    assert walk.send(StepEnded("a", "failed", 1, failure)) is once


def test_news_of_a_step_that_does_not_exist_or_has_not_started_change_nothing() -> None:
    walk = RunWalk(plan_of(task("a"), task("b", "a")))
    for step_id in ("b", "unknown"):
        for event in (
            StepEnded(step_id, "completed", 1),
            StepParked(step_id, "max_iterations", 1, "e5", 5),
            StepResumed(step_id, "e5", 5),
        ):
            assert walk.send(event) is walk.trace[0]


def test_a_register_that_was_ended_with_its_run_is_no_news() -> None:
    walk = RunWalk(plan_of(task("a")))
    assert walk.send(StepEnded("a", "cancelled", 0)) is walk.trace[0]


# ------------------------------------------------------------------ parked steps


LOOP = AgentLoopStep(id="a", type="think", max_iterations=3, on_limit="park")


def test_a_parked_step_parks_the_run_when_nothing_else_is_active() -> None:
    walk = RunWalk(plan_of(LOOP, task("b")))
    run = walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    assert (walk.status("a"), run.status, run.failure) == ("parked", "running", None)
    run = walk.send(StepEnded("b", "completed", 1))
    assert (run.status, run.failed_step) == ("parked", "a")
    assert run.failure == Failure("max_iterations", run.failure.message, retryable=False)
    assert "resume" in run.failure.message
    assert run.steps["a"] == StepEntry(
        status="parked",
        iterations=3,
        started_ms=own.EPOCH_MS,
        event="e5",
        failure=run.failure,
        position=20,
    )


def test_a_resumed_step_makes_the_run_run() -> None:
    walk = RunWalk(plan_of(LOOP))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    run = walk.send(StepResumed("a", "e6", 21))
    assert (run.status, run.failure, run.failed_step) == ("running", None, "")
    assert run.steps["a"] == StepEntry(
        status="active", started_ms=own.EPOCH_MS, event="e6", position=21
    )


def test_two_parked_steps_are_resumed_one_by_one() -> None:
    other = AgentLoopStep(id="b", type="think", max_iterations=3, on_limit="park")
    walk = RunWalk(plan_of(LOOP, other))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    assert walk.run.status == "running"
    walk.send(StepParked("b", "max_duration", 1, "t5", 21))
    assert walk.run.status == "parked"
    walk.send(StepResumed("b", "e6", 22))
    assert (walk.run.status, walk.status("a")) == ("running", "parked")
    run = walk.send(StepEnded("b", "completed", 2))
    assert (run.status, run.failed_step) == ("parked", "a")


def test_news_of_an_older_value_of_the_register_change_nothing() -> None:
    walk = RunWalk(plan_of(LOOP))
    resumed = walk.send(StepResumed("a", "e6", 21))
    assert walk.send(StepParked("a", "max_iterations", 3, "e5", 20)) is resumed
    assert walk.send(StepParked("a", "max_iterations", 3, "e5", 21)) is resumed
    parked = walk.send(StepParked("a", "max_iterations", 4, "e8", 25))
    assert parked.steps["a"].iterations == 4
    assert walk.send(StepResumed("a", "e6", 21)) is parked
    assert walk.send(StepResumed("a", "e8", 25)) is parked


def test_a_step_that_ended_neither_parks_nor_moves_again() -> None:
    walk = RunWalk(plan_of(LOOP, task("b")))
    ended = walk.send(StepEnded("a", "completed", 3, event="e9", position=30))
    assert walk.send(StepParked("a", "max_iterations", 3, "e10", 31)) is ended
    assert walk.send(StepResumed("a", "e11", 32)) is ended


def test_the_newest_parking_is_told_also_if_the_resume_between_was_missed() -> None:
    walk = RunWalk(plan_of(LOOP))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    run = walk.send(StepParked("a", "max_duration", 5, "t9", 30))
    assert (run.steps["a"].iterations, run.failure.type) == (5, "max_duration")


def test_a_step_that_ended_is_not_parked_any_more_also_if_its_resume_was_missed() -> None:
    walk = RunWalk(plan_of(LOOP, task("b", "a")))
    walk.send(StepParked("a", "max_iterations", 3, "e5", 20))
    run = walk.send(StepEnded("a", "completed", 5, event="e9", position=30))
    assert (run.status, run.failure, run.failed_step) == ("running", None, "")
    assert walk.status("b") == "active"
