"""A parked step moves on when a bound was raised, once for each request; parked time is free.
Method: examples of each bound; properties over any request after any life."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import StepWalk

from treadle.engine.core import Moment
from treadle.engine.core.bounds import reached
from treadle.sdk.definition import AgentLoopStep, Retry
from treadle.sdk.limits import DURATION_S_MAX, ITERATIONS_MAX
from treadle.sdk.messages import Delayed, Parked, ResumeRequested, Sleeping, Task, TimerFired
from treadle.sdk.spending import SPENT_MAX, SpendingLimits


def parked_loop(*, max_iterations: int = 2, max_duration_s: float = 0) -> StepWalk:
    """A loop that parked when it had taken all of its iterations."""
    walk = StepWalk(
        AgentLoopStep(
            id="a",
            type="think",
            max_iterations=max_iterations,
            max_duration_s=max_duration_s,
            retry=Retry(max_attempts=3, delay_s=0),
            on_limit="park",
        )
    )
    for _ in range(max_iterations):
        walk.continue_(after_ms=100)
    assert isinstance(walk.now, Parked)
    return walk


def parked_by_time(**fields: Any) -> StepWalk:
    """A loop of ten seconds that parked at its deadline, in its second iteration."""
    step = AgentLoopStep(
        id="a", type="think", max_iterations=9, max_duration_s=10, on_limit="park", **fields
    )
    walk = StepWalk(step)
    walk.continue_()
    walk.deadline(after_ms=10_000)
    assert isinstance(walk.now, Parked)
    return walk


@given(own.loop_steps(on_limit="park"), moves(), own.resumes, st.integers(0, 10**7))
def test_a_resumed_step_is_below_all_of_its_bounds_or_it_stays_parked(
    step: AgentLoopStep, moves: list[tuple[str, dict[str, object]]], event: ResumeRequested, ms: int
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    before = walk.now
    after = walk.send(event, after_ms=ms)
    if after is before:
        return
    assert isinstance(before, Parked)
    assert isinstance(after, Task)
    assert not reached(after, walk.now_ms)
    assert event.step in ("", "a")
    assert before.task.max_iterations <= after.max_iterations <= ITERATIONS_MAX
    for name in SpendingLimits.__struct_fields__:
        had, has = getattr(before.task.limits, name), getattr(after.limits, name)
        assert had <= has <= SPENT_MAX
        assert bool(had) == bool(has), "what is unlimited stays so"
    if before.task.deadline_ms:
        assert after.deadline_ms - before.task.deadline_ms >= walk.now_ms - before.parked_ms
        assert after.deadline_ms <= after.started_ms + after.parked_ms + DURATION_S_MAX * 1000
    spare = before.failure is not None
    assert after == msgspec.structs.replace(
        before.task,
        failures=0 if spare else before.task.failures,
        losses=0 if spare else before.task.losses,
        parent=after.parent,
        max_iterations=after.max_iterations,
        deadline_ms=after.deadline_ms,
        limits=after.limits,
        parked_ms=before.task.parked_ms + walk.now_ms - before.parked_ms,
    )


@pytest.mark.parametrize("after_ms", [0, -1, -5_000])
def test_a_clock_that_went_back_takes_no_time_from_a_parked_step(after_ms: int) -> None:
    walk = parked_loop(max_duration_s=10)
    parked = walk.now
    task = walk.resume(after_ms=after_ms, add_iterations=1)
    assert (task.parked_ms, task.deadline_ms) == (0, parked.task.deadline_ms)


@pytest.mark.parametrize(
    ("bounds", "max_iterations"),
    [
        ({"add_iterations": 3}, 5),
        ({"max_iterations": 7}, 7),
        ({"max_iterations": 7, "add_iterations": 3}, 10),
        ({"max_iterations": 7, "add_iterations": -3}, 7),
    ],
)
def test_a_raised_count_lets_the_loop_go_on_where_it_stood(
    bounds: dict[str, int], max_iterations: int
) -> None:
    walk = parked_loop()
    parked = walk.now
    task = walk.resume(after_ms=60_000, **bounds)
    assert (task.iteration, task.max_iterations) == (2, max_iterations)
    assert (task.input, task.checkpoint) == (parked.task.input, parked.task.checkpoint)
    for _ in range(max_iterations - 2):
        walk.continue_()
    assert isinstance(walk.now, Parked)


@pytest.mark.parametrize(
    "bounds",
    [
        {},
        {"add_iterations": 0},
        {"add_iterations": -9},
        {"max_iterations": 2},
        {"max_iterations": 1},
        {"add_duration_ms": 60_000},
    ],
)
def test_without_a_raised_count_it_stays_parked(bounds: dict[str, int]) -> None:
    walk = parked_loop()
    assert walk.resume(**bounds) is walk.before
    assert isinstance(walk.now, Parked)


def test_a_bound_is_never_lowered() -> None:
    walk = parked_by_time()
    task = walk.resume(max_iterations=3, add_iterations=-5, max_duration_ms=60_000)
    assert task.max_iterations == 9
    walk = parked_loop(max_duration_s=10)
    started_ms = walk.now.task.started_ms
    task = walk.resume(add_iterations=1, max_duration_ms=5, add_duration_ms=-9_000)
    assert task.deadline_ms == started_ms + 10_000


def test_a_request_for_another_step_is_not_for_this_one() -> None:
    walk = parked_loop()
    assert walk.resume(step="b", add_iterations=1) is walk.before
    assert isinstance(walk.resume(step="a", add_iterations=1), Task)


@pytest.mark.parametrize("kind", [Task, Delayed, Sleeping])
def test_a_step_that_is_not_parked_is_not_resumed(kind: type[Task | Delayed | Sleeping]) -> None:
    walk = parked_loop(max_iterations=3)
    walk.resume(add_iterations=3)
    walk.continue_(delay_ms={Task: 0, Delayed: 1_000, Sleeping: 60_000}[kind])
    assert isinstance(walk.now, kind)
    assert walk.resume(add_iterations=9) is walk.before


# ------------------------------------------------------------------ time


def test_time_spent_parked_does_not_count() -> None:
    walk = parked_loop(max_duration_s=10)
    started_ms = walk.now.task.started_ms
    task = walk.resume(add_iterations=3, after_ms=86_400_000)
    assert task.deadline_ms == started_ms + 10_000 + 86_400_000
    assert walk.deadline(after_ms=9_799) is task, "200 ms were used before it parked"
    assert isinstance(walk.deadline(after_ms=1), Parked)


def test_a_raised_duration_counts_from_where_the_old_one_ended() -> None:
    walk = parked_by_time()
    task = walk.resume(add_duration_ms=5_000, after_ms=86_400_000)
    assert task.deadline_ms == walk.now_ms + 5_000
    assert (task.iteration, task.attempt) == (1, 2)


def test_a_duration_raised_to_a_value_does_not_count_any_time_parked_before() -> None:
    walk = parked_by_time()
    walk.resume(add_duration_ms=5_000, after_ms=86_400_000)
    walk.deadline(after_ms=5_000)
    assert isinstance(walk.now, Parked)
    task = walk.resume(max_duration_ms=20_000, after_ms=86_400_000)
    assert task.parked_ms == 2 * 86_400_000
    assert task.deadline_ms == walk.now_ms + 5_000, "of 20 s 15 are used"


def test_a_loop_that_ran_out_of_time_needs_more_time() -> None:
    walk = parked_by_time()
    assert walk.resume(add_iterations=9) is walk.before
    assert walk.resume(max_duration_ms=10_000) is walk.before
    assert isinstance(walk.resume(max_duration_ms=10_001), Task)


def test_no_bound_is_raised_beyond_what_a_definition_may_ask_for() -> None:
    task = parked_loop(max_duration_s=10).resume(add_iterations=2**80, add_duration_ms=2**80)
    assert task.max_iterations == ITERATIONS_MAX
    assert task.deadline_ms == task.started_ms + DURATION_S_MAX * 1000


def test_an_unbounded_duration_stays_unbounded_unless_one_is_named() -> None:
    assert parked_loop().resume(add_iterations=1, add_duration_ms=500).deadline_ms == 0
    walk = parked_loop()
    started_ms = walk.now.task.started_ms
    task = walk.resume(add_iterations=1, max_duration_ms=60_000, add_duration_ms=500)
    assert task.deadline_ms == started_ms + 60_500


def test_clocks_of_two_servers_may_differ_and_no_time_is_lost() -> None:
    walk = parked_loop(max_duration_s=10)
    deadline_ms = walk.now.task.deadline_ms
    task = walk.resume(add_iterations=1, after_ms=-50)
    assert (task.deadline_ms, task.parked_ms) == (deadline_ms, 0)


# ------------------------------------------------------------------ once for each request


@given(
    st.sampled_from((parked_loop, parked_by_time)),
    st.integers(0, 2),
    moves(),
    st.integers(0, 100_000),
)
def test_a_repeated_request_never_raises_a_bound_twice(
    park: Callable[[], StepWalk],
    add_iterations: int,
    moves: list[tuple[str, dict[str, object]]],
    ms: int,
) -> None:
    walk = park()
    event = ResumeRequested(add_iterations=add_iterations + 1, add_duration_ms=1_000)
    assert isinstance(walk.send(event, after_ms=ms), Task)
    moment = walk.last_moment
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    assert walk.send(event, moment=moment) is walk.before


def test_a_request_delivered_again_after_the_next_parking_is_for_the_first() -> None:
    walk = parked_loop()
    event = ResumeRequested(add_iterations=1)
    walk.send(event)
    moment = walk.last_moment
    parked = walk.continue_()
    assert isinstance(parked, Parked)
    assert walk.send(event, moment=moment) is parked
    assert isinstance(walk.send(event), Task), "a new request is another one"


def test_a_request_older_than_a_parking_by_a_timer_is_told_by_the_time() -> None:
    walk = parked_by_time()
    parked = walk.now
    assert parked.parent.startswith("t")
    event = ResumeRequested(add_duration_ms=60_000)
    early = Moment(own.RUN, "e999", parked.parked_ms - 1, 999)
    assert walk.send(event, moment=early) is parked
    assert isinstance(walk.send(event, moment=early._replace(ms=parked.parked_ms)), Task)


# ------------------------------------------------------------------ what is not raised


def test_failures_of_the_iteration_still_count_after_a_resume() -> None:
    walk = parked_by_time(retry=Retry(max_attempts=2, delay_s=0))
    walk.resume(add_duration_ms=60_000)
    walk.fail()
    walk.deadline(after_ms=60_000)
    task = walk.resume(add_duration_ms=60_000)
    assert (task.failures, task.attempt) == (1, 4)
    assert walk.fail().outcome == "failed"


def test_a_timer_of_the_old_deadline_does_not_stop_a_resumed_step() -> None:
    walk = parked_by_time()
    task = walk.resume(add_duration_ms=5_000)
    assert walk.send(TimerFired(kind="step_deadline"), after_ms=4_999) is task
