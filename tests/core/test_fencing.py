"""The door to a register opens for the holder of its token only, and never after the end.
Method: any event against any value the core can write; examples for each late event."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import StepWalk

from treadle.engine.core import Moment, Placed, advance, is_live
from treadle.sdk.definition import AgentLoopStep, Retry, TaskStep
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Failure,
    LiveRegister,
    Parked,
    Register,
    Sleeping,
    StepCompleted,
    StepContinued,
    StepFailed,
    Task,
    TaskDue,
    TaskLost,
)

TOKEN = 60
LOOP = AgentLoopStep(id="a", type="think", max_iterations=5, retry=Retry(max_attempts=3, delay_s=0))

a_step_and_its_register = own.work_steps().flatmap(
    lambda step: st.tuples(st.just(step), own.registers(step))
)
a_step_and_its_live_register = own.work_steps().flatmap(
    lambda step: st.tuples(st.just(step), own.live_registers(step))
)
any_event = own.register_events(st.sampled_from((TOKEN, TOKEN, TOKEN, TOKEN - 1)))


@given(
    a_step_and_its_live_register,
    own.task_events(st.integers(-5, TOKEN + 5).filter(lambda token: token != TOKEN)),
    own.moments(),
)
def test_an_event_that_does_not_hold_the_token_changes_nothing(
    pair: tuple[TaskStep | AgentLoopStep, LiveRegister], event: TaskLost, moment: Moment
) -> None:
    step, register = pair
    assert advance(step, Placed(TOKEN, register), event, moment) is register


@given(own.work_steps(), own.ended_registers(), any_event, own.moments())
def test_an_ended_register_never_moves(
    step: TaskStep | AgentLoopStep, register: Ended, event: TaskLost, moment: Moment
) -> None:
    assert advance(step, Placed(TOKEN, register), event, moment) is register
    assert not is_live(register)


@given(
    a_step_and_its_live_register,
    st.one_of(
        own.settles(st.just(TOKEN)),
        st.just(TaskLost(step="a", type="work", token=TOKEN)),
    ),
    own.moments(),
)
def test_only_a_task_that_was_given_out_is_settled_or_lost(
    pair: tuple[TaskStep | AgentLoopStep, LiveRegister], event: TaskLost, moment: Moment
) -> None:
    step, register = pair
    new = advance(step, Placed(TOKEN, register), event, moment)
    assert (new is not register) == isinstance(register, Task)
    assert is_live(register)


@given(a_step_and_its_register, any_event, own.moments())
def test_any_event_in_any_state_gives_a_value_that_names_its_event(
    pair: tuple[TaskStep | AgentLoopStep, Register], event: TaskLost, moment: Moment
) -> None:
    step, register = pair
    new = advance(step, Placed(TOKEN, register), event, moment)
    assert new is register or new.parent == moment.id
    if new is not register and isinstance(new, Delayed | Sleeping):
        assert new.due_ms > moment.ms


@given(a_step_and_its_register, any_event, own.moments())
def test_a_repeated_event_changes_nothing(
    pair: tuple[TaskStep | AgentLoopStep, Register], event: TaskLost, moment: Moment
) -> None:
    step, register = pair
    once = advance(step, Placed(TOKEN, register), event, moment)
    if once is not register:
        assert advance(step, Placed(TOKEN + 1, once), event, moment) is once


@given(own.work_steps(), moves(), st.data())
def test_no_event_of_an_earlier_value_changes_anything_however_late(
    step: TaskStep | AgentLoopStep, moves: list[tuple[str, dict[str, object]]], data: st.DataObject
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    earlier = [placed.sequence for placed in walk.trace[:-1]]
    if earlier:
        event = data.draw(own.task_events(st.sampled_from(earlier)))
        assert walk.send(event) is walk.before


@given(a_step_and_its_register, any_event, own.moments())
def test_every_value_is_read_back_as_it_was_written(
    pair: tuple[TaskStep | AgentLoopStep, Register], event: TaskLost, moment: Moment
) -> None:
    step, register = pair
    for value in (register, advance(step, Placed(TOKEN, register), event, moment)):
        assert msgspec.json.decode(msgspec.json.encode(value), type=Register) == value


def late_events(token: int) -> list[StepContinued | StepCompleted | StepFailed | TaskLost]:
    failure = Failure("ValueError", "late")
    return [
        StepContinued(step="a", type="think", token=token, head=token),
        StepCompleted(step="a", type="think", token=token, head=token),
        StepFailed(step="a", type="think", token=token, head=token, failure=failure),
        TaskLost(step="a", type="think", token=token),
    ]


@pytest.mark.parametrize("index", range(4))
def test_a_late_report_of_an_earlier_attempt_is_ignored(index: int) -> None:
    walk = StepWalk(LOOP)
    earlier = walk.placed.sequence
    second = walk.fail()
    assert second.attempt == 2
    assert walk.send(late_events(earlier)[index]) is second


@pytest.mark.parametrize("index", range(4))
def test_a_late_report_of_an_earlier_iteration_is_ignored(index: int) -> None:
    walk = StepWalk(LOOP)
    earlier = walk.placed.sequence
    second = walk.continue_()
    assert second.iteration == 1
    assert walk.send(late_events(earlier)[index]) is second


def test_the_same_continue_counts_once() -> None:
    walk = StepWalk(LOOP)
    event = late_events(walk.placed.sequence)[0]
    assert walk.send(event).iteration == 1
    assert walk.send(event) is walk.before
    assert walk.now.iteration == 1


def test_a_loss_reported_after_the_continue_changes_nothing() -> None:
    walk = StepWalk(LOOP)
    lost = late_events(walk.placed.sequence)[3]
    following = walk.continue_()
    assert walk.send(lost) is following


def test_a_continue_after_the_reported_loss_changes_nothing() -> None:
    walk = StepWalk(LOOP)
    continued = late_events(walk.placed.sequence)[0]
    again = walk.lose()
    assert (again.iteration, again.attempt) == (0, 2)
    assert walk.send(continued) is again


def test_a_delay_of_an_earlier_value_is_not_over_now() -> None:
    walk = StepWalk(LOOP)
    walk.continue_(delay_ms=100)
    over = TaskDue(step="a", type="think", token=walk.placed.sequence)
    walk.due(after_ms=100)
    delayed = walk.continue_(delay_ms=100)
    assert walk.send(over, after_ms=100) is delayed


@pytest.mark.parametrize("kind", [Task, Sleeping, Parked])
def test_only_a_delayed_task_becomes_due(kind: type[Task | Sleeping | Parked]) -> None:
    task = StepWalk(LOOP).now
    register = {
        Task: task,
        Sleeping: Sleeping(parent="e1", task=task, due_ms=0),
        Parked: Parked(parent="e1", task=task, reason="max_iterations", parked_ms=0),
    }[kind]
    event = TaskDue(step="a", type="think", token=TOKEN)
    moment = Moment(own.RUN, "e9", own.EPOCH_MS, 9)
    assert advance(LOOP, Placed(TOKEN, register), event, moment) is register
