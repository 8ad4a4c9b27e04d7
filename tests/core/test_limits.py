"""A loop's bounds: exact, whatever the step is doing, and what a reached one does.
Method: lives of loops against each bound; each way a bound can end a step by example."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import StepWalk

from treadle.engine.core.bounds import WRAP_UP_MS, task_of
from treadle.sdk.definition import AgentLoopStep, OnLimit, Retry, TaskStep
from treadle.sdk.limits import LOSSES_MAX
from treadle.sdk.messages import (
    Delayed,
    Ended,
    LiveRegister,
    Parked,
    Register,
    Sleeping,
    Task,
    TimerFired,
)

Moves = list[tuple[str, dict[str, object]]]


def loop(
    on_limit: OnLimit = "fail",
    *,
    max_iterations: int = 3,
    max_duration_s: float = 0,
    timeout_s: float = 0,
) -> StepWalk:
    return StepWalk(
        AgentLoopStep(
            id="a",
            type="think",
            max_iterations=max_iterations,
            max_duration_s=max_duration_s,
            timeout_s=timeout_s,
            retry=Retry(max_attempts=3, delay_s=0),
            on_limit=on_limit,
        )
    )


def tasks_of(walk: StepWalk) -> list[Task]:
    return [task_of(value) for value in walk.values if not isinstance(value, Ended)]


# ------------------------------------------------------------------ max_iterations


@given(own.loop_steps(), moves())
def test_no_iteration_beyond_max_iterations_is_ever_given_out(
    step: AgentLoopStep, moves: Moves
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    for value in walk.values:
        if not isinstance(value, Parked | Ended):
            task = task_of(value)
            assert task.iteration < task.max_iterations or task.wrap_up


@given(own.loop_steps(), moves())
def test_iterations_are_counted_one_by_one_and_only_by_verdicts_that_commit(
    step: AgentLoopStep, moves: Moves
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        before, after = walk.now, getattr(walk, verb)(**arguments)
        if after is before:
            continue
        committed = task_of(before).iteration + (verb in ("continue_", "wait", "complete"))
        iterations = after.iterations if isinstance(after, Ended) else task_of(after).iteration
        assert iterations == committed


@pytest.mark.parametrize("max_iterations", [1, 2, 3, 7])
def test_a_loop_that_never_completes_fails_after_exactly_max_iterations(
    max_iterations: int,
) -> None:
    walk = loop(max_iterations=max_iterations)
    for iteration in range(max_iterations - 1):
        assert walk.now.iteration == iteration
        assert isinstance(walk.continue_(), Task)
    ended = walk.continue_('"last"')
    assert (ended.outcome, ended.iterations) == ("failed", max_iterations)
    assert (ended.failure.type, ended.failure.retryable) == ("max_iterations", False)
    assert f"all of its {max_iterations} iterations" in ended.failure.message


def test_the_last_allowed_iteration_may_complete() -> None:
    walk = loop(max_iterations=2)
    walk.continue_()
    assert (walk.complete().outcome, walk.now.iterations) == ("completed", 2)


def test_a_step_failed_by_its_bound_keeps_the_last_output() -> None:
    walk = loop(max_iterations=2)
    walk.continue_('"first"')
    assert walk.continue_('"last"').output == msgspec.Raw(b'"last"')


# ------------------------------------------------------------------ max_duration


@given(own.loop_steps(), moves(), st.integers(-5, 5))
def test_the_deadline_cuts_whatever_the_step_is_doing_and_never_early(
    step: AgentLoopStep, moves: Moves, off_ms: int
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    before = walk.now
    if isinstance(before, Ended | Parked) or not task_of(before).deadline_ms:
        assert walk.deadline(after_ms=10_000_000) is before
        return
    walk.now_ms = task_of(before).deadline_ms + off_ms
    after = walk.deadline()
    if off_ms < 0:
        assert after is before
    elif step.on_limit == "park":
        assert isinstance(after, Parked)
    elif step.on_limit == "wrap_up" and not task_of(before).wrap_up:
        assert after.wrap_up == "max_duration"
    else:
        assert (after.outcome, after.failure.retryable) == ("failed", False)
        assert after.failure.type == (task_of(before).wrap_up or "max_duration")


def held_back(walk: StepWalk, kind: type[LiveRegister]) -> Register:
    """Bring a loop into its second iteration, as a task, delayed or asleep."""
    delay_ms = {Task: 0, Delayed: 20_000, Sleeping: 60_000}[kind]
    register = walk.continue_('"first"', delay_ms=delay_ms)
    assert type(register) is kind
    return register


@pytest.mark.parametrize("kind", [Task, Delayed, Sleeping])
def test_max_duration_counts_from_the_first_dispatch(kind: type[LiveRegister]) -> None:
    walk = loop(max_duration_s=10)
    first_ms = walk.now_ms
    walk.now_ms += 4_000
    register = held_back(walk, kind)
    assert walk.deadline(after_ms=5_999) is register
    ended = walk.deadline(after_ms=1)
    assert (ended.outcome, ended.failure.type, ended.iterations) == ("failed", "max_duration", 1)
    assert (ended.started_ms, ended.ended_ms) == (first_ms, first_ms + 10_000)
    assert ended.output == msgspec.Raw(b'"first"'), "the last output is kept"
    assert "after 1 of at most 3 iterations" in ended.failure.message


def test_a_loop_cut_in_its_first_iteration_has_no_output() -> None:
    assert loop(max_duration_s=10).deadline(after_ms=10_000).output == msgspec.Raw(b"null")


def test_no_iteration_starts_after_max_duration_even_if_the_timer_is_late() -> None:
    walk = loop(max_duration_s=10)
    assert walk.continue_(after_ms=9_999).iteration == 1
    ended = walk.continue_(after_ms=1)
    assert (ended.failure.type, ended.iterations) == ("max_duration", 2)


def test_the_count_is_named_when_both_bounds_are_reached() -> None:
    walk = loop(max_iterations=1, max_duration_s=10)
    assert walk.continue_(after_ms=10_000).failure.type == "max_iterations"


def test_work_that_completes_before_the_timer_fires_is_kept() -> None:
    assert loop(max_duration_s=10).complete(after_ms=10_001).outcome == "completed"


@pytest.mark.parametrize("kind", [Task, Delayed, Sleeping])
def test_no_max_duration_means_no_deadline(kind: type[LiveRegister]) -> None:
    walk = loop()
    register = held_back(walk, kind)
    assert task_of(register).deadline_ms == 0
    assert walk.deadline(after_ms=10**12) is register


def test_a_task_has_no_deadline() -> None:
    walk = StepWalk(TaskStep(id="a", type="work", timeout_s=1))
    assert walk.deadline(after_ms=10**12) is walk.before


# ------------------------------------------------------------------ on_limit: wrap_up


@given(own.loop_steps(on_limit="wrap_up"), moves())
def test_a_loop_wraps_up_at_most_once_and_then_it_ends(step: AgentLoopStep, moves: Moves) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    flags = [bool(task.wrap_up) for task in tasks_of(walk)]
    assert flags == sorted(flags), "once wrapping up, always wrapping up"
    assert len({task.iteration for task in tasks_of(walk) if task.wrap_up}) <= 1
    assert len({task.wrap_up for task in tasks_of(walk) if task.wrap_up}) <= 1
    if isinstance(walk.now, Ended) and any(flags) and walk.now.outcome == "failed":
        assert walk.now.failure is not None
        assert walk.now.failure.type in (tasks_of(walk)[-1].wrap_up, "worker_lost")


def test_a_loop_at_its_bound_gets_one_more_iteration_to_wrap_up() -> None:
    walk = loop("wrap_up", max_iterations=2, timeout_s=30)
    walk.continue_()
    last = walk.continue_('"so far"')
    assert isinstance(last, Task)
    assert (last.wrap_up, last.iteration, last.attempt) == ("max_iterations", 2, 1)
    assert last.input.value == msgspec.Raw(b'"so far"')
    assert last.deadline_ms == walk.now_ms + 30_000 + WRAP_UP_MS
    ended = walk.complete('"put together"')
    assert (ended.outcome, ended.iterations) == ("completed", 3)
    assert ended.output == msgspec.Raw(b'"put together"')


def test_a_wrapping_up_iteration_that_continues_ends_the_step_with_the_bound() -> None:
    walk = loop("wrap_up", max_iterations=1)
    walk.continue_()
    ended = walk.continue_('"not yet"')
    assert (ended.outcome, ended.failure.type) == ("failed", "max_iterations")
    assert ended.output == msgspec.Raw(b'"not yet"')


def test_a_loop_out_of_time_that_continues_while_wrapping_up_gets_no_further_iteration() -> None:
    walk = loop("wrap_up", max_iterations=9, max_duration_s=10)
    walk.deadline(after_ms=10_000)
    assert walk.continue_().failure.type == "max_duration"


def test_a_wrapping_up_iteration_that_fails_ends_the_step_with_the_bound() -> None:
    walk = loop("wrap_up", max_iterations=1)
    walk.continue_('"so far"')
    ended = walk.fail(traceback="Traceback: ...")
    assert (ended.outcome, ended.failure.type, ended.iterations) == ("failed", "max_iterations", 1)
    assert ended.failure.traceback == "Traceback: ..."
    assert "wrapping up failed: ValueError: it broke" in ended.failure.message
    assert "all of its 1 iterations" in ended.failure.message
    assert ended.failure.retryable is False
    assert ended.output == msgspec.Raw(b'"so far"')


def test_a_worker_lost_while_wrapping_up_does_not_lose_the_last_iteration() -> None:
    walk = loop("wrap_up", max_iterations=1)
    walk.continue_()
    again = walk.lose()
    assert (again.wrap_up, again.attempt) == ("max_iterations", 2)
    for _ in range(LOSSES_MAX):
        walk.lose()
        walk.due(after_ms=10_000)
    assert walk.now.failure.type == "worker_lost"


def test_a_wrapping_up_iteration_that_hangs_is_cut() -> None:
    walk = loop("wrap_up", max_iterations=1)
    last = walk.continue_('"so far"')
    assert walk.deadline(after_ms=WRAP_UP_MS - 1) is last
    ended = walk.deadline(after_ms=1)
    assert (ended.outcome, ended.failure.type) == ("failed", "max_iterations")
    assert ended.output == msgspec.Raw(b'"so far"')


def test_the_deadline_turns_a_hanging_iteration_into_the_wrapping_up_one() -> None:
    walk = loop("wrap_up", max_duration_s=10)
    walk.continue_('"first"')
    walk.fail()
    walk.lose()
    last = walk.deadline(after_ms=10_000)
    assert (last.wrap_up, last.iteration, last.attempt) == ("max_duration", 1, 4)
    assert (last.failures, last.losses) == (0, 0)
    assert last.checkpoint == -1, "the hanging execution may have saved one"
    assert last.deadline_ms == walk.now_ms + WRAP_UP_MS
    assert last.input.value == msgspec.Raw(b'"first"')


def test_a_pause_cut_by_the_deadline_costs_no_attempt() -> None:
    walk = loop("wrap_up", max_duration_s=10)
    walk.continue_(delay_ms=20_000, head=walk.placed.sequence + 1)
    saved = walk.now.task.checkpoint
    last = walk.deadline(after_ms=10_000)
    assert (last.wrap_up, last.attempt, last.checkpoint) == ("max_duration", 1, saved)


# ------------------------------------------------------------------ on_limit: park


def test_a_loop_at_its_bound_parks_with_all_it_has() -> None:
    walk = loop("park", max_iterations=1)
    parked = walk.continue_('"so far"', head=walk.placed.sequence + 1)
    assert isinstance(parked, Parked)
    assert (parked.reason, parked.parked_ms) == ("max_iterations", walk.now_ms)
    assert (parked.task.iteration, parked.task.attempt) == (1, 1)
    assert parked.task.input.value == msgspec.Raw(b'"so far"')
    assert parked.task.checkpoint == walk.trace[0].sequence + 1


def test_the_deadline_parks_a_hanging_iteration_whose_execution_is_fenced_off() -> None:
    walk = loop("park", max_duration_s=10)
    token = walk.placed.sequence
    parked = walk.deadline(after_ms=10_000)
    assert (parked.reason, parked.task.attempt, parked.task.checkpoint) == ("max_duration", 2, -1)
    assert walk.placed.sequence > token


@pytest.mark.parametrize(
    "verb", ["continue_", "complete", "fail", "lose", "due", "wake", "deadline"]
)
def test_a_parked_step_does_not_move(verb: str) -> None:
    walk = loop("park", max_iterations=1, max_duration_s=10)
    parked = walk.continue_()
    assert getattr(walk, verb)(after_ms=60_000) is parked


def test_timers_of_other_steps_bounds_do_not_touch_this_one() -> None:
    walk = loop()
    assert walk.send(TimerFired(kind="wake"), after_ms=10**9) is walk.before
