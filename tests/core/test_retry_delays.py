"""How long a failed attempt waits for the next one, and that every engine says the same.
Method: the curves by table; cap, jitter and the handler's wish as properties of any policy."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.walks import StepWalk

from treadle.engine.core.retry import (
    LOSS_DELAY_MS,
    LOSS_DELAY_MS_MAX,
    RETRY_DELAY_MS_MAX,
    draw,
    loss_delay_ms,
    retry_delay_ms,
)
from treadle.sdk.definition import Backoff, Retry, TaskStep
from treadle.sdk.messages import Delayed, Sleeping

HALF = 0.5
"""The draw that leaves a delay as it is."""

draws = st.floats(0, 1, exclude_max=True)
counts = st.integers(1, 1_000)


@pytest.mark.parametrize(
    ("backoff", "delays_ms"),
    [
        ("fixed", [2_000, 2_000, 2_000, 2_000, 2_000]),
        ("linear", [2_000, 4_000, 6_000, 8_000, 10_000]),
        ("exponential", [2_000, 6_000, 18_000, 54_000, 60_000]),
    ],
)
def test_delays_grow_as_the_policy_says(backoff: Backoff, delays_ms: list[int]) -> None:
    policy = Retry(backoff=backoff, delay_s=2, multiplier=3, max_delay_s=60, jitter=0)
    assert [retry_delay_ms(policy, n, HALF) for n in range(1, 6)] == delays_ms


@pytest.mark.parametrize("backoff", ["linear", "exponential"])
def test_the_cap_holds_however_often_it_failed(backoff: Backoff) -> None:
    policy = Retry(backoff=backoff, delay_s=2, multiplier=100, max_delay_s=60, jitter=0)
    assert retry_delay_ms(policy, 1_000, HALF) == 60_000


def test_a_multiplier_of_one_never_reaches_the_cap() -> None:
    policy = Retry(delay_s=2, multiplier=1, max_delay_s=60, jitter=0)
    assert retry_delay_ms(policy, 1_000, HALF) == 2_000


def test_a_growth_that_lands_on_the_cap_stays_there() -> None:
    policy = Retry(delay_s=1, multiplier=2, max_delay_s=4, jitter=0)
    assert [retry_delay_ms(policy, n, HALF) for n in (2, 3, 4)] == [2_000, 4_000, 4_000]


@given(own.retries(), counts, draws)
def test_no_delay_is_negative_or_above_the_cap(policy: Retry, failures: int, drawn: float) -> None:
    delay_ms = retry_delay_ms(policy, failures, drawn)
    assert 0 <= delay_ms <= round(policy.max_delay_s * 1000)


@given(own.retries(), counts, draws)
def test_jitter_stays_within_its_share(policy: Retry, failures: int, drawn: float) -> None:
    plain_ms = retry_delay_ms(policy, failures, HALF)
    delay_ms = retry_delay_ms(policy, failures, drawn)
    assert abs(delay_ms - plain_ms) <= plain_ms * policy.jitter + 1


@pytest.mark.parametrize(("drawn", "delay_ms"), [(0.0, 7_500), (0.5, 10_000), (0.75, 11_250)])
def test_jitter_goes_both_ways(drawn: float, delay_ms: int) -> None:
    policy = Retry(backoff="fixed", delay_s=10, jitter=0.25)
    assert retry_delay_ms(policy, 1, drawn) == delay_ms


def test_the_cap_cuts_the_jitter_too() -> None:
    policy = Retry(backoff="fixed", delay_s=10, max_delay_s=10, jitter=1)
    assert retry_delay_ms(policy, 1, 0.9) == 10_000


@given(own.retries(), counts, draws, st.integers(-10, 2**70))
def test_the_handlers_wish_is_a_lower_bound_that_the_cap_does_not_cut(
    policy: Retry, failures: int, drawn: float, wish_ms: int
) -> None:
    delay_ms = retry_delay_ms(policy, failures, drawn, wish_ms)
    without_ms = retry_delay_ms(policy, failures, drawn)
    assert delay_ms == min(max(without_ms, wish_ms), RETRY_DELAY_MS_MAX)


def test_a_wish_beyond_all_reason_is_cut_at_a_year() -> None:
    assert retry_delay_ms(Retry(), 1, HALF, 2**80) == 365 * 24 * 3_600_000


def test_a_wish_of_the_handler_holds_back_the_next_attempt() -> None:
    policy = Retry(max_attempts=9, delay_s=1, jitter=0)
    walk = StepWalk(TaskStep(id="a", type="work", retry=policy))
    again = walk.fail(retry_after_ms=5_000)
    assert again == Delayed(parent=again.parent, task=again.task, due_ms=walk.now_ms + 5_000)
    walk.due(after_ms=5_000)
    assert isinstance(walk.fail(retry_after_ms=90_000), Sleeping)


def test_the_policy_counts_failures_of_this_iteration_only() -> None:
    policy = Retry(max_attempts=9, backoff="linear", delay_s=1, jitter=0)
    walk = StepWalk(TaskStep(id="a", type="work", retry=policy))
    walk.lose()
    for failures in (1, 2, 3):
        assert walk.fail().due_ms == walk.now_ms + failures * 1_000
        walk.due(after_ms=10_000)


def test_every_engine_draws_the_same() -> None:
    policy = Retry(max_attempts=9, delay_s=10, jitter=0.5)
    step = TaskStep(id="a", type="work", retry=policy)
    one, other = StepWalk(step), StepWalk(step)
    assert one.fail() == other.fail()


def test_the_draw_is_between_nought_and_one_and_differs_by_run_step_iteration_and_attempt() -> None:
    drawn = {
        draw(run, step, iteration, attempt)
        for run in ("r1", "r2")
        for step in ("a", "b")
        for iteration in range(5)
        for attempt in range(1, 6)
    }
    assert len(drawn) == 100
    assert all(0 <= value < 1 for value in drawn)
    assert min(drawn) < 0.1
    assert max(drawn) > 0.9


@pytest.mark.parametrize(
    ("field", "other"), [("run", "r2"), ("step", "b"), ("iteration", 1), ("attempt", 2)]
)
def test_attempts_of_different_runs_do_not_wait_in_step(field: str, other: object) -> None:
    of = {"run": "r1", "step": "a", "iteration": 0, "attempt": 1}
    assert draw(**of) != draw(**{**of, field: other})  # type: ignore[arg-type]


def test_the_draw_never_changes_between_releases() -> None:
    # Two engines of two versions have to agree on the due time of one retry.
    assert draw("r1", "a", 0, 1) == pytest.approx(0.38678963016718626, abs=1e-12)


def test_a_task_that_kills_worker_after_worker_is_slowed_down() -> None:
    delays_ms = [loss_delay_ms(losses) for losses in range(1, 9)]
    assert delays_ms == [0, 200, 400, 800, 1_600, 3_200, 6_400, 10_000]
    assert (LOSS_DELAY_MS, LOSS_DELAY_MS_MAX) == (200, 10_000)
    assert loss_delay_ms(1_000) == 10_000
