"""What is due of a trigger at a time, and what is left out: the catch-up policies.
Method: a trigger that fires every ten minutes, decided at times of the test's choice."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from treadle.engine.core.triggers import CAUGHT_UP_MAX, ON_TIME_MS, decide, requested
from treadle.sdk.triggers.times import firings_of
from treadle.sdk.triggers.trigger import CatchUp, Cron, Trigger

TEN_MS = 600_000
FIRINGS = firings_of("@every 10m")


def trigger(catch_up: CatchUp = "skip", **fields: object) -> Trigger:
    on = Cron("@every 10m", catch_up=catch_up)
    return msgspec.structs.replace(Trigger(on=on, workflow="flow"), **fields)


def test_the_first_firing_is_the_first_one_after_the_change() -> None:
    decided = decide(trigger(), FIRINGS, TEN_MS - 1, TEN_MS - 1)
    assert (decided.next_ms, decided.due) == (TEN_MS, ())
    assert decide(decided, FIRINGS, TEN_MS - 1, TEN_MS - 1) is decided


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_a_firing_that_is_handled_in_time_is_due_and_the_next_one_is_waited_for(
    catch_up: CatchUp,
) -> None:
    for late_ms in (0, ON_TIME_MS):
        waiting = trigger(catch_up, next_ms=TEN_MS)
        decided = decide(waiting, FIRINGS, 0, TEN_MS + late_ms)
        assert (decided.due, decided.next_ms) == ((TEN_MS,), 2 * TEN_MS)
        assert (decided.missed_from_ms, decided.missed_to_ms) == (0, 0)
        assert decide(decided, FIRINGS, 0, 9 * TEN_MS) is decided
        noted = requested(decided, "")
        assert (noted.due, noted.fired_ms) == ((), TEN_MS)


def test_nothing_is_due_a_moment_too_early() -> None:
    waiting = trigger(next_ms=TEN_MS)
    assert decide(waiting, FIRINGS, 0, TEN_MS - 1) is waiting


@pytest.mark.parametrize(
    ("catch_up", "late_ms", "due", "left_out"),
    [
        ("skip", ON_TIME_MS + 1, (), (1, 3)),
        ("skip", ON_TIME_MS, (3,), (1, 2)),
        ("last", ON_TIME_MS + 1, (3,), (1, 2)),
        ("all", ON_TIME_MS + 1, (1, 2, 3), (0, 0)),
    ],
)
def test_of_three_that_stood_out(
    catch_up: CatchUp, late_ms: int, due: tuple[int, ...], left_out: tuple[int, int]
) -> None:
    decided = decide(trigger(catch_up, next_ms=TEN_MS), FIRINGS, 0, 3 * TEN_MS + late_ms)
    assert decided.due == tuple(n * TEN_MS for n in due)
    assert (decided.missed_from_ms, decided.missed_to_ms) == (
        left_out[0] * TEN_MS,
        left_out[1] * TEN_MS,
    )
    assert decided.next_ms == 4 * TEN_MS


def test_all_is_the_newest_hundred_and_says_what_was_left_out() -> None:
    decided = decide(trigger("all", next_ms=TEN_MS), FIRINGS, 0, 250 * TEN_MS)
    assert decided.due == tuple(n * TEN_MS for n in range(251 - CAUGHT_UP_MAX, 251))
    assert (decided.missed_from_ms, decided.missed_to_ms) == (TEN_MS, 150 * TEN_MS)


def test_a_paused_trigger_is_left_as_it_is() -> None:
    paused = trigger("all", paused=True)
    assert decide(paused, FIRINGS, 0, 10 * TEN_MS) is paused


def test_a_change_while_a_firing_is_due_keeps_both() -> None:
    changed = trigger(due=(TEN_MS,), next_ms=0)
    decided = decide(changed, FIRINGS, 5 * TEN_MS, 9 * TEN_MS)
    assert (decided.due, decided.next_ms) == ((TEN_MS,), 6 * TEN_MS)


def test_a_firing_that_could_not_start_its_run_is_noted_as_failed() -> None:
    decided = decide(trigger(next_ms=TEN_MS), FIRINGS, 0, TEN_MS)
    noted = requested(decided, "no such workflow")
    assert (noted.due, noted.fired_ms, noted.failed_ms) == ((), 0, TEN_MS)
    assert noted.failure == "no such workflow"


@settings(max_examples=100, deadline=None)
@given(
    st.sampled_from(["skip", "last", "all"]),
    st.lists(st.integers(0, 3 * TEN_MS), min_size=1, max_size=30),
)
def test_however_often_it_is_looked_at_each_firing_is_due_once_or_left_out(
    catch_up: CatchUp, pauses: list[int]
) -> None:
    now_ms, standing, fired = 0, trigger(catch_up), list[int]()
    left_out = list[int]()
    for pause_ms in pauses:
        now_ms += pause_ms
        standing = decide(standing, FIRINGS, 0, now_ms)
        if standing.missed_to_ms not in (0, *left_out):
            first_ms = standing.missed_from_ms
            left_out += range(first_ms, standing.missed_to_ms + 1, TEN_MS)
        if standing.due:
            fired += standing.due
            standing = requested(standing, "")
    assert sorted(fired + left_out) == list(range(TEN_MS, now_ms + 1, TEN_MS))
    assert fired == sorted(fired)
