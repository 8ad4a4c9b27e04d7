"""Messages and waiting: what wakes a step, what it costs, and that no unseen message ends one.
Method: examples of each rule on one register; properties after any life."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import RunWalk, StepWalk, plan_of

from treadle.engine.core import StepParked, advance, effects
from treadle.engine.core.advance import DELAY_MS_MAX, REASON_CHARS_MAX
from treadle.engine.core.bounds import reached, task_of
from treadle.sdk.definition import AgentLoopStep, Retry, TaskStep
from treadle.sdk.messages import (
    Ended,
    Failure,
    Inline,
    Parked,
    StepCompleted,
    StepWaiting,
    Task,
)
from treadle.sdk.run import WAITING

LOOP = AgentLoopStep(id="a", type="think", max_iterations=5, max_duration_s=10)
Moves = list[tuple[str, dict[str, Any]]]


def waiting(**told: Any) -> StepWalk:
    """A loop that waits after its first iteration, 100 ms after its start."""
    walk = StepWalk(LOOP)
    walk.wait(after_ms=100, **told)
    assert isinstance(walk.now, Parked)
    return walk


# ------------------------------------------------------------------ waiting


def test_a_verdict_to_wait_commits_the_iteration_and_holds_the_next_one_back() -> None:
    walk = StepWalk(LOOP)
    parked = walk.wait('"state"', due_in_ms=60_000, reason="a person", seen=7, takes_messages=True)
    assert isinstance(parked, Parked)
    assert (parked.waits, parked.reason, parked.due_ms) == (True, "a person", own.EPOCH_MS + 60_000)
    assert (parked.task.iteration, parked.task.attempt, parked.seen) == (1, 1, 7)
    assert parked.task.input == Inline(msgspec.Raw(b'"state"'))


@pytest.mark.parametrize("what", ["message", "wake", "resume"])
def test_what_wakes_a_step_gives_out_the_task_it_held_back(what: str) -> None:
    walk = waiting(due_in_ms=60_000)
    parked = walk.now
    task = getattr(walk, what)(after_ms=60_000)
    expected = msgspec.structs.replace(
        parked.task,
        parent=task.parent,
        parked_ms=60_000,
        deadline_ms=parked.task.deadline_ms + 60_000,
    )
    assert task == expected


def test_time_spent_waiting_does_not_count() -> None:
    walk = waiting()
    assert walk.deadline(after_ms=86_400_000) is walk.before
    task = walk.message()
    assert walk.deadline(after_ms=9_899) is task, "100 ms were used before it waited"
    assert isinstance(walk.deadline(after_ms=1), Ended)


def test_a_timer_wakes_at_its_time_and_not_before() -> None:
    walk = waiting(due_in_ms=60_000)
    assert walk.wake(after_ms=59_999) is walk.before
    assert isinstance(walk.wake(after_ms=1), Task)


def test_without_a_time_no_timer_wakes_it() -> None:
    walk = waiting()
    assert walk.wake(after_ms=10**12) is walk.before
    assert effects.of_register("a", "think", walk.now) == ()


def test_a_waiting_register_asks_for_its_wake_up_and_for_no_deadline() -> None:
    walk = waiting(due_in_ms=60_000)
    (timer,) = effects.of_register("a", "think", walk.now)
    assert (timer.id, timer.due_ms, timer.event.kind) == ("w-a", walk.now.due_ms, "wake")


@pytest.mark.parametrize("due_in_ms", [-5_000, -1])
def test_a_time_that_has_passed_is_no_wait(due_in_ms: int) -> None:
    task = StepWalk(LOOP).wait(due_in_ms=due_in_ms)
    assert isinstance(task, Task)
    assert task.iteration == 1


@pytest.mark.parametrize(("due_ms", "kind"), [(1, Task), (0, Parked), (-1, Parked), (-9, Parked)])
def test_any_time_since_1970_is_a_time_and_what_is_below_is_none(due_ms: int, kind: type) -> None:
    walk = StepWalk(LOOP)
    value = walk.send(StepWaiting(step="a", type="think", token=1, head=1, due_ms=due_ms))
    assert isinstance(value, kind)
    assert isinstance(value, Task) or value.due_ms == 0


def test_a_clock_that_went_back_takes_no_time_from_a_step_that_waited() -> None:
    walk = waiting()
    task = walk.message(after_ms=-5_000)
    assert (task.parked_ms, task.deadline_ms) == (0, own.EPOCH_MS + 10_000)


def test_no_wait_is_longer_than_a_delay_may_be_and_no_reason_longer_than_a_line() -> None:
    parked = StepWalk(LOOP).wait(due_in_ms=2**80, reason="x" * 10_000)
    assert parked.due_ms == own.EPOCH_MS + DELAY_MS_MAX
    assert parked.reason == "x" * REASON_CHARS_MAX


def test_a_wait_at_a_bound_is_the_bound() -> None:
    walk = StepWalk(msgspec.structs.replace(LOOP, max_iterations=1, on_limit="park"))
    parked = walk.wait()
    assert (parked.waits, parked.reason) == (False, "max_iterations")
    assert walk.message() is parked, "a message raises no bound"
    assert walk.wake(after_ms=10**9) is parked
    assert walk.resume(add_iterations=1).iteration == 1


def test_only_a_loop_waits() -> None:
    ended = StepWalk(TaskStep(id="a", type="work")).wait()
    assert ended.failure.type == "wait_in_task"
    assert not ended.failure.retryable


def test_no_message_holds_up_the_end_of_a_task() -> None:
    walk = StepWalk(TaskStep(id="a", type="work"))
    assert isinstance(walk.complete(takes_messages=True, newest=10**9), Ended)


def test_waiting_is_one_more_attempt_at_nothing() -> None:
    walk = StepWalk(msgspec.structs.replace(LOOP, retry=Retry(max_attempts=3, delay_s=0)))
    walk.fail()
    walk.lose()
    task = walk.wait().task
    assert (task.attempt, task.failures, task.losses, task.last_failure) == (1, 0, 0, None)


# ------------------------------------------------------------------ messages


def test_a_message_is_nothing_to_a_step_that_does_not_wait() -> None:
    walk = StepWalk(LOOP)
    assert walk.message() is walk.before
    walk.continue_(delay_ms=60_000)
    assert walk.message() is walk.before
    walk.wake(after_ms=60_000)
    walk.complete()
    assert walk.message() is walk.before


def test_a_message_for_another_step_wakes_nothing() -> None:
    walk = waiting()
    assert walk.message(step="b") is walk.before


def test_a_seen_message_wakes_nothing_and_the_next_one_does() -> None:
    walk = waiting(seen=90, takes_messages=True)
    moment = walk.last_moment._replace(id="e90", sequence=90)
    assert walk.message(moment=moment) is walk.before
    assert isinstance(walk.message(moment=moment._replace(id="e91", sequence=91)), Task)


def test_a_handler_that_reads_none_has_seen_what_came_before_its_verdict() -> None:
    walk = waiting()
    sequence = walk.events
    assert walk.now.seen == sequence
    moment = walk.last_moment
    assert walk.message(moment=moment) is walk.before
    late = moment._replace(id=f"e{sequence + 1}", sequence=sequence + 1)
    assert isinstance(walk.message(moment=late), Task)


@pytest.mark.parametrize(("newest", "kind"), [(89, Parked), (90, Parked), (91, Task)])
def test_a_message_that_is_there_already_is_no_wait(newest: int, kind: type) -> None:
    value = StepWalk(LOOP).wait(seen=90, takes_messages=True, newest=newest)
    assert isinstance(value, kind)


@pytest.mark.parametrize(
    ("told", "newest", "ends"),
    [
        ({"takes_messages": True, "seen": 90}, 90, True),
        ({"takes_messages": True, "seen": 90}, 91, False),
        ({"takes_messages": True}, 1, False),
        ({"takes_messages": True}, 0, True),
        ({"seen": 90}, 91, True),
    ],
)
def test_a_completion_over_an_unseen_message_is_another_iteration(
    told: dict[str, Any], newest: int, ends: bool
) -> None:
    value = StepWalk(LOOP).complete('"out"', newest=newest, **told)
    assert isinstance(value, Ended) is ends
    if isinstance(value, Task):
        assert (value.iteration, value.attempt, value.seen) == (1, 1, told.get("seen", 0))
        assert value.input == Inline(msgspec.Raw(b'"out"'))


def test_who_names_no_newest_message_says_that_there_is_none() -> None:
    walk = StepWalk(LOOP)
    event = StepCompleted(step="a", type="think", token=1, head=1, takes_messages=True)
    assert isinstance(advance(LOOP, walk.placed, event, walk.last_moment), Ended)


def test_nobody_has_seen_what_comes_after_the_verdict() -> None:
    walk = StepWalk(LOOP)
    task = walk.continue_(seen=10**9, takes_messages=True)
    assert task.seen == walk.events
    assert isinstance(walk.complete(newest=walk.events + 1, takes_messages=True), Task)


def test_what_committed_iterations_have_seen_is_not_forgotten() -> None:
    walk = StepWalk(msgspec.structs.replace(LOOP, retry=Retry(max_attempts=3, delay_s=0)))
    walk.continue_(seen=50, takes_messages=True)
    assert walk.fail(seen=70, takes_messages=True).seen == 50, "a failed attempt may forget it"
    walk.continue_()
    assert walk.now.seen == 50
    assert isinstance(walk.complete(newest=50, takes_messages=True), Ended)


@given(own.loop_steps(), moves(), st.integers(0, 500), st.integers(0, 500))
def test_a_step_that_takes_messages_ends_with_all_seen_or_at_a_bound(
    step: AgentLoopStep, moves: Moves, seen: int, newest: int
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    before = walk.now
    after = walk.complete(newest=newest, seen=seen, takes_messages=True)
    if not isinstance(before, Task):
        return
    known = max(before.seen, min(seen, walk.events))
    following = msgspec.structs.replace(before, iteration=before.iteration + 1)
    if newest <= known or reached(following, walk.now_ms):
        assert isinstance(after, Ended)
        assert after.outcome == "completed"
    else:
        assert isinstance(after, Task)
        assert (after.iteration, after.seen) == (before.iteration + 1, known)


@given(own.loop_steps(), moves(), st.sampled_from(("message", "wake")), st.integers(0, 10**6))
def test_what_wakes_a_step_changes_nothing_but_its_time(
    step: AgentLoopStep, moves: Moves, what: str, ms: int
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    before = walk.now
    after = getattr(walk, what)(after_ms=ms)
    if after is before:
        return
    assert isinstance(after, Task)
    assert not reached(after, walk.now_ms) or after.wrap_up or not isinstance(before, Parked)
    held = task_of(before)
    assert after == msgspec.structs.replace(
        held, parent=after.parent, parked_ms=after.parked_ms, deadline_ms=after.deadline_ms
    )
    if isinstance(before, Parked):
        assert before.waits
        waited_ms = walk.now_ms - before.parked_ms
        assert after.parked_ms - held.parked_ms == waited_ms
        assert after.deadline_ms == (held.deadline_ms + waited_ms if held.deadline_ms else 0)


# ------------------------------------------------------------------ the document


def test_a_run_whose_step_waits_is_parked_and_says_for_what() -> None:
    walk = RunWalk(plan_of(LOOP))
    run = walk.send(StepParked("a", "a person", 1, "e2", 5, waits=True))
    assert (run.status, run.failed_step) == ("parked", "a")
    assert run.failure is not None
    assert run.failure == Failure(WAITING, "a person", retryable=False)
