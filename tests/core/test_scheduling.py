"""A scheduled run is there at once, begins at its time and not before, and enters its lane then.
Method: documents walked event by event; whole lives with engines that die are in test_any_order,
lanes with scheduled runs in test_lanes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.core import Moment, Plan, apply, effects, request
from treadle.engine.core.facts import RunPlaced
from treadle.engine.core.scheduling import begins_ms
from treadle.sdk.definition import SignalStep, TaskStep, WorkflowDefinition
from treadle.sdk.limits import DURATION_S_MAX
from treadle.sdk.messages import (
    CancelRequested,
    LaneGranted,
    PauseRequested,
    RunRequested,
    SignalReceived,
    TimerFired,
)
from treadle.sdk.run import RunDocument

PLAN = Plan(WorkflowDefinition(name="w", steps=(TaskStep(id="a", type="t"),), timeout_s=5), "h")
AT_MS = 60_000
START = TimerFired(kind="run_start", due_ms=AT_MS)


def at(ms: int, sequence: int = 9, letter: str = "e") -> Moment:
    return Moment("r", f"{letter}{sequence}", ms, sequence)


def scheduled(plan: Plan = PLAN, *, requested_ms: int = 1_000, **fields: Any) -> RunDocument:
    event = RunRequested(workflow="w", definition="h", **{"start_at_ms": AT_MS, **fields})
    return request(plan, event, at(requested_ms, 7), "main")


def test_a_scheduled_run_has_no_step_and_asks_for_a_timer() -> None:
    run = scheduled()
    assert (run.status, run.starts_ms, run.steps, run.deadline_ms) == ("scheduled", AT_MS, {}, 0)
    assert effects.of_document(PLAN, run) == (effects.SetTimer("start", AT_MS, START),)


def test_it_begins_at_its_time_and_its_own_time_counts_from_then() -> None:
    run = scheduled()
    assert apply(PLAN, run, START, at(AT_MS - 1)) is run, "a clock that is ahead"
    begun = apply(PLAN, run, START, at(AT_MS + 200))
    assert (begun.status, begun.deadline_ms) == ("running", AT_MS + 5_200)
    assert begun.steps["a"].started_ms == AT_MS + 200
    assert apply(PLAN, begun, START, at(AT_MS + 300)) is begun
    late = apply(PLAN, begun, TimerFired(kind="run_deadline"), at(AT_MS + 5_200))
    assert late.failure is not None
    assert "5 s after its start" in late.failure.message


@pytest.mark.parametrize("lane", ["", "lane"])
def test_a_time_that_has_passed_is_now(lane: str) -> None:
    run = scheduled(requested_ms=AT_MS, lane=lane)
    assert run.status == ("queued" if lane else "running")


def test_a_delay_counts_from_the_request_by_the_servers_clock() -> None:
    assert scheduled(start_at_ms=0, start_after_ms=500).starts_ms == 1_500


@given(st.integers(-(2**62), 2**62), st.integers(-(2**62), 2**62), st.integers(0, 2**41))
def test_whatever_is_asked_for_is_at_once_or_within_ten_years(at_ms: int, by: int, ms: int) -> None:
    event = RunRequested(workflow="w", definition="h", start_at_ms=at_ms, start_after_ms=by)
    due_ms = begins_ms(event, ms)
    assert due_ms == 0 or due_ms <= ms + DURATION_S_MAX * 1000
    assert (due_ms == 0) == (at_ms <= 0 and by <= 0)
    run = request(PLAN, event, at(ms, 7), "main")
    assert run.status == ("scheduled" if due_ms > ms else "running")


def test_it_is_cancelled_like_any_run_and_clears_its_timer() -> None:
    plain = Plan(msgspec.structs.replace(PLAN.definition, timeout_s=0), "h")
    run = apply(plain, scheduled(plain), CancelRequested(reason="no"), at(2_000))
    assert (run.status, run.ended_ms) == ("cancelled", 2_000)
    assert effects.of_document(plain, run) == (effects.ClearTimers(),)
    assert apply(plain, run, START, at(AT_MS)) is run


def test_a_signal_that_comes_before_is_kept() -> None:
    plan = Plan(WorkflowDefinition(name="w", steps=(SignalStep(id="go", signal="go"),)), "h")
    run = apply(plan, scheduled(plan), SignalReceived(name="go"), at(2_000, 8))
    assert run.status == "scheduled"
    begun = apply(plan, run, START, at(AT_MS))
    assert (begun.status, begun.steps["go"].event) == ("completed", "e8")


def test_a_pause_before_it_begins_holds_it() -> None:
    run = apply(PLAN, scheduled(), PauseRequested(reason="wait"), at(2_000))
    assert run.status == "scheduled"
    assert apply(PLAN, run, START, at(AT_MS)).status == "paused"


# ------------------------------------------------------------------ lanes


def entering(**fields: Any) -> RunDocument:
    return apply(PLAN, scheduled(lane="lane", **fields), START, at(AT_MS))


def test_when_it_is_time_it_enters_its_lane_and_has_no_place_before() -> None:
    run = scheduled(lane="lane")
    assert effects.SettleLane() not in effects.of_document(PLAN, run)
    run = entering()
    assert (run.status, run.placed, run.deadline_ms) == ("queued", 0, 0)
    assert effects.of_document(PLAN, run) == (effects.EnterLane(),)
    assert apply(PLAN, run, LaneGranted(lane="lane", request=7), at(AT_MS)) is run


def test_its_place_is_the_first_of_the_events_with_which_it_entered() -> None:
    run = apply(PLAN, entering(), RunPlaced(7, is_queued=True, behind="other"), at(AT_MS, 20))
    assert (run.status, run.placed, run.place) == ("queued", 20, 20)
    assert effects.of_document(PLAN, run) == (effects.SettleLane(),)
    assert apply(PLAN, run, RunPlaced(7, is_queued=False), at(AT_MS, 21)) is run
    assert apply(PLAN, run, LaneGranted(lane="lane", request=7), at(AT_MS, 22)) is run
    begun = apply(PLAN, run, LaneGranted(lane="lane", request=20), at(AT_MS + 100, 22))
    assert (begun.status, begun.deadline_ms) == ("running", AT_MS + 5_100)


def test_the_first_in_its_lane_begins_at_once() -> None:
    begun = apply(PLAN, entering(), RunPlaced(7, is_queued=False), at(AT_MS, 20))
    assert (begun.status, begun.placed) == ("running", 20)


def test_an_entry_for_an_earlier_life_of_the_id_changes_nothing() -> None:
    run = entering()
    assert apply(PLAN, run, RunPlaced(6, is_queued=False), at(AT_MS, 20)) is run


@pytest.mark.parametrize(("behind", "status"), [("other", "cancelled"), ("r", "queued")])
def test_a_singleton_is_skipped_if_another_is_in_its_way_then(behind: str, status: str) -> None:
    run = entering(singleton="skip")
    placed = apply(PLAN, run, RunPlaced(7, is_queued=True, behind=behind), at(AT_MS, 20))
    assert placed.status == status
