"""How often an iteration is executed, and what the next attempt is told.
Method: lives of one step against the sentences of the retry policy; each boundary by example."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import StepWalk

from treadle.engine.core.advance import DELAY_MS_MAX, DUE_TOLERANCE_MS
from treadle.engine.core.bounds import task_of
from treadle.engine.core.plan import DELAY_BY_WORKER_MS_MAX
from treadle.sdk.definition import AgentLoopStep, Retry, TaskStep
from treadle.sdk.limits import DURATION_S_MAX, LOSSES_MAX
from treadle.sdk.messages import Delayed, Ended, Failure, Inline, Parked, Sleeping, Task, TimerFired
from treadle.sdk.spending import at_least, plus, reached

AT_ONCE = Retry(max_attempts=3, delay_s=0)

LOOP = AgentLoopStep(id="a", type="think", max_iterations=5, retry=AT_ONCE)
TASK = TaskStep(id="a", type="work", retry=AT_ONCE)


@given(own.work_steps(), moves())
def test_failures_never_exceed_max_attempts_and_the_last_one_ends_or_parks_the_step(
    step: TaskStep | AgentLoopStep, moves: list[tuple[str, dict[str, object]]]
) -> None:
    walk = StepWalk(step)
    failures: dict[int, int] = {}
    for verb, arguments in moves:
        before = walk.now
        after = getattr(walk, verb)(**arguments)
        if isinstance(after, Parked) and verb == "lose":
            failures[after.task.iteration] = 0  # A resume gives it all its attempts again.
        if verb != "fail" or after is before or before.wrap_up:
            continue
        count = failures[before.iteration] = failures.get(before.iteration, 0) + 1
        may_retry = arguments["retryable"] and arguments["type"] not in step.retry.non_retryable
        assert count <= step.retry.max_attempts
        used = plus(before.spent, at_least(before.spent_now, arguments["spent"]))
        if count < step.retry.max_attempts and may_retry and reached(before.limits, used):
            continue  # A budget: what that does is told in test_spending.py.
        if count < step.retry.max_attempts and may_retry:
            assert not isinstance(after, Ended)
            assert task_of(after).failures == count
        elif may_retry and step.retry.on_exhausted == "park":
            assert isinstance(after, Parked)
            assert after.failure.type == arguments["type"]
            failures[before.iteration] = 0
        else:
            assert isinstance(after, Ended)
            assert (after.outcome, after.failure.type) == ("failed", arguments["type"])
            assert after.iterations == before.iteration


@given(own.work_steps(), moves())
def test_attempts_count_every_execution_of_an_iteration_from_one(
    step: TaskStep | AgentLoopStep, moves: list[tuple[str, dict[str, object]]]
) -> None:
    walk = StepWalk(step)
    executions = 1
    for verb, arguments in moves:
        before, after = walk.now, getattr(walk, verb)(**arguments)
        if after is before or isinstance(after, Ended):
            continue
        task = task_of(after)
        if task.iteration != task_of(before).iteration:
            executions = 1
        elif isinstance(before, Task):
            executions += 1
        assert task.attempt == executions


@given(own.work_steps(), moves())
def test_lost_workers_of_an_iteration_never_exceed_their_bound(
    step: TaskStep | AgentLoopStep, moves: list[tuple[str, dict[str, object]]]
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    live = [register for register in walk.values if not isinstance(register, Ended)]
    assert all(task_of(register).losses <= LOSSES_MAX for register in live)


def test_a_task_fails_after_exactly_max_attempts_executions() -> None:
    walk = StepWalk(TASK)
    assert walk.fail().attempt == 2
    assert walk.fail().attempt == 3
    ended = walk.fail()
    assert (ended.outcome, ended.attempt, ended.iterations) == ("failed", 3, 0)
    assert ended.failure == Failure("ValueError", "it broke")


def test_one_attempt_means_no_retry() -> None:
    assert StepWalk(TaskStep(id="a", type="work")).fail().outcome == "failed"


def test_every_iteration_has_all_of_its_attempts() -> None:
    walk = StepWalk(LOOP)
    for iteration in range(4):
        walk.fail()
        walk.lose()
        assert (walk.fail().iteration, walk.now.attempt) == (iteration, 4)
        following = walk.continue_()
        assert (following.iteration, following.attempt) == (iteration + 1, 1)
        assert (following.failures, following.losses, following.last_failure) == (0, 0, None)


def test_a_non_retryable_failure_ends_the_step_at_once() -> None:
    assert StepWalk(TASK).fail(retryable=False).outcome == "failed"


def test_an_error_type_the_policy_names_ends_the_step_at_once() -> None:
    step = TaskStep(id="a", type="work", retry=Retry(max_attempts=3, non_retryable=("Fatal",)))
    assert StepWalk(step).fail("Fatal").failure.type == "Fatal"
    assert StepWalk(step).fail("ValueError").task.attempt == 2


def test_a_lost_worker_costs_an_attempt_but_no_failure() -> None:
    walk = StepWalk(TASK)
    again = walk.lose()
    assert (again.attempt, again.failures, again.losses) == (2, 0, 1)
    walk.fail()
    assert walk.fail().failures == 2


@pytest.mark.parametrize(("step", "what"), [(TASK, "it"), (LOOP, "iteration 0")])
def test_a_task_that_kills_every_worker_is_given_up(
    step: TaskStep | AgentLoopStep, what: str
) -> None:
    walk = StepWalk(step)
    for losses in range(1, LOSSES_MAX + 1):
        walk.lose()
        assert task_of(walk.now).losses == losses
        walk.due(after_ms=60_000)
    ended = walk.lose()
    assert (ended.outcome, ended.failure.type) == ("failed", "worker_lost")
    assert ended.failure.retryable is False
    assert f"{LOSSES_MAX + 1} workers" in ended.failure.message
    assert f"executed {what};" in ended.failure.message


def test_the_first_lost_worker_costs_no_time_and_the_next_ones_do() -> None:
    walk = StepWalk(TASK)
    assert isinstance(walk.lose(), Task)
    assert walk.lose() == Delayed(
        parent=walk.last_moment.id, task=task_of(walk.now), due_ms=walk.now_ms + 200
    )


def test_an_attempt_is_told_why_the_one_before_failed() -> None:
    walk = StepWalk(TASK)
    assert walk.now.last_failure is None
    assert walk.fail("timeout").last_failure == Failure("timeout", "it broke")


def test_a_retry_has_the_same_input() -> None:
    walk = StepWalk(LOOP)
    walk.continue_('"one"')
    assert walk.fail().input == Inline(msgspec.Raw(b'"one"'))


def test_the_output_of_continue_is_the_next_input() -> None:
    walk = StepWalk(LOOP)
    assert walk.continue_('{"n": 1}').input == Inline(msgspec.Raw(b'{"n": 1}'))


def test_complete_ends_the_step_with_its_output_and_counts_the_iteration() -> None:
    walk = StepWalk(LOOP)
    walk.continue_()
    started_ms = walk.now.started_ms
    ended = walk.complete('"result"', after_ms=700)
    assert ended == Ended(
        parent=walk.last_moment.id,
        outcome="completed",
        iterations=2,
        attempt=1,
        output=msgspec.Raw(b'"result"'),
        started_ms=started_ms,
        ended_ms=started_ms + 700,
    )


def test_a_task_that_continues_fails_with_what_was_wrong() -> None:
    ended = StepWalk(TASK).continue_()
    assert (ended.outcome, ended.failure.type, ended.iterations) == (
        "failed",
        "continue_in_task",
        0,
    )
    assert ended.failure.retryable is False
    assert "'a' is a task" in ended.failure.message


# ------------------------------------------------------------------ checkpoints


@pytest.mark.parametrize("verb", ["continue_", "fail"])
def test_a_checkpoint_the_execution_saved_stands_for_the_next(verb: str) -> None:
    walk = StepWalk(LOOP)
    saved = walk.placed.sequence + 1
    assert getattr(walk, verb)(head=saved).checkpoint == saved
    assert getattr(walk, verb)().checkpoint == saved, "nothing was saved: the old one stands"


def test_after_a_lost_worker_the_checkpoint_is_unknown() -> None:
    assert StepWalk(LOOP).lose().checkpoint == -1


# ------------------------------------------------------------------ delays


@pytest.mark.parametrize(
    ("delay_ms", "kind"),
    [
        (0, Task),
        (1, Delayed),
        (DELAY_BY_WORKER_MS_MAX, Delayed),
        (DELAY_BY_WORKER_MS_MAX + 1, Sleeping),
    ],
)
def test_short_delays_are_kept_by_workers_and_long_ones_by_timers(
    delay_ms: int, kind: type[Task | Delayed | Sleeping]
) -> None:
    walk = StepWalk(LOOP)
    register = walk.continue_(delay_ms=delay_ms)
    assert isinstance(register, kind)
    assert task_of(register).iteration == 1
    if not isinstance(register, Task):
        assert register.due_ms == walk.now_ms + delay_ms


def test_the_loops_own_delay_holds_unless_the_handler_names_one() -> None:
    step = AgentLoopStep(id="a", type="think", max_iterations=5, loop_delay_s=2.5)
    walk = StepWalk(step)
    assert walk.continue_().due_ms == walk.now_ms + 2_500
    walk.due(after_ms=2_500)
    assert isinstance(walk.continue_(delay_ms=0), Task)


def test_a_delay_beyond_all_reason_is_cut() -> None:
    walk = StepWalk(LOOP)
    assert walk.continue_(delay_ms=2**80).due_ms == walk.now_ms + DELAY_MS_MAX
    assert DELAY_MS_MAX == DURATION_S_MAX * 1000


@pytest.mark.parametrize(
    ("early_ms", "kind"), [(DUE_TOLERANCE_MS, Task), (DUE_TOLERANCE_MS + 1, Sleeping)]
)
def test_a_receiver_whose_clock_is_ahead_hands_the_rest_to_the_timers(
    early_ms: int, kind: type[Task | Sleeping]
) -> None:
    walk = StepWalk(LOOP)
    delayed = walk.continue_(delay_ms=1_000)
    register = walk.due(after_ms=1_000 - early_ms)
    assert isinstance(register, kind)
    assert task_of(register).attempt == 1
    if isinstance(register, Sleeping):
        assert register.due_ms == delayed.due_ms


def test_a_sleeping_task_wakes_at_its_time_and_not_before() -> None:
    walk = StepWalk(LOOP)
    sleeping = walk.continue_(delay_ms=60_000)
    assert walk.wake(after_ms=59_999) is sleeping
    task = walk.wake(after_ms=1)
    assert task == msgspec.structs.replace(sleeping.task, parent=task.parent)


def test_a_wake_up_is_for_the_sleeping_only() -> None:
    walk = StepWalk(LOOP)
    assert walk.wake(after_ms=60_000) is walk.before
    delayed = walk.continue_(delay_ms=1_000)
    assert walk.wake(after_ms=60_000) is delayed


def test_the_runs_deadline_is_no_matter_of_a_register() -> None:
    walk = StepWalk(AgentLoopStep(id="a", type="think", max_iterations=5, max_duration_s=1))
    assert walk.send(TimerFired(kind="run_deadline"), after_ms=60_000) is walk.before
