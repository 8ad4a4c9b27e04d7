"""One step: its register and an event give the next value of the register.

    Task ──continue──> Task | Delayed | Sleeping      the next iteration
    Task ──complete──> Ended(completed)
    Task ──fail──────> Task | Delayed | Sleeping      the next attempt, or Ended(failed)
    Task ──lost──────> Task | Delayed                 the next attempt, or Ended(failed)
    Delayed ──due──> Task        Sleeping ──wake──> Task        Parked ──resume──> Task
    any live value ──bound──> Ended(failed) | Task(wrap_up) | Parked

This is the only door to a register. It knows nothing of NATS, clocks or the run document. An
event that does not hold the token of the register's present value, or asks for a move that is
not in the picture, returns the same object: it is stale, and nothing happens.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard, assert_never

import msgspec

from treadle.engine.core import bounds
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import DELAY_BY_WORKER_MS_MAX
from treadle.engine.core.retry import draw, is_exhausted, loss_delay_ms, retry_delay_ms
from treadle.sdk.definition import AgentLoopStep, TaskStep
from treadle.sdk.limits import DURATION_S_MAX
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Failure,
    Inline,
    LiveRegister,
    Register,
    ResumeRequested,
    Sleeping,
    StepCompleted,
    StepContinued,
    StepFailed,
    Task,
    TaskDue,
    TaskLost,
    TimerFired,
)

LOSSES_MAX = 10
"""Workers that may vanish over one iteration before it is taken for the cause."""

DELAY_MS_MAX = DURATION_S_MAX * 1000
"""Delays that a handler asks for are cut at the longest that a definition may ask for."""

DUE_TOLERANCE_MS = 50
"""A receiver's clock may run this much ahead of the server's before it is not believed."""

Work = TaskStep | AgentLoopStep
RegisterEvent = (
    StepContinued | StepCompleted | StepFailed | TaskLost | TaskDue | TimerFired | ResumeRequested
)


class Placed(NamedTuple):
    """A register's value and the sequence at which it is stored: the fencing token."""

    sequence: int
    register: Register


def is_live(register: Register) -> TypeGuard[LiveRegister]:
    """True while the register can still move."""
    return not isinstance(register, Ended)


def advance(step: Work, at: Placed, event: RegisterEvent, moment: Moment) -> Register:
    """Return the register's next value, or the same object when the event is stale."""
    register = at.register
    if isinstance(register, Ended):
        return register
    match event:
        case TimerFired():
            return _timer(step, register, event, moment)
        case ResumeRequested():
            return bounds.resume(step, register, event, moment)
        case TaskDue():
            return _due(register, moment) if event.token == at.sequence else register
        case StepContinued() | StepCompleted() | StepFailed() | TaskLost():
            if event.token != at.sequence or not isinstance(register, Task):
                return register
            return _settled(step, register, event, moment)
        case _:
            assert_never(event)


def _settled(
    step: Work,
    task: Task,
    event: StepContinued | StepCompleted | StepFailed | TaskLost,
    moment: Moment,
) -> Register:
    match event:
        case StepContinued():
            return _continued(step, task, event, moment)
        case StepCompleted():
            return bounds.ended(task, moment, "completed", task.iteration + 1, output=event.output)
        case StepFailed():
            return _failed(step, task, event, moment)
        case TaskLost():
            return lost(task, moment)
        case _:
            assert_never(event)


def _continued(step: Work, task: Task, event: StepContinued, moment: Moment) -> Register:
    if not isinstance(step, AgentLoopStep):
        failure = Failure(
            "continue_in_task", f"step {step.id!r} is a task; only an agent loop continues", False
        )
        return bounds.ended(task, moment, "failed", 0, failure=failure)
    following = msgspec.structs.replace(
        task,
        parent=moment.id,
        iteration=task.iteration + 1,
        attempt=1,
        failures=0,
        losses=0,
        input=Inline(event.output),
        checkpoint=_standing_checkpoint(task, event.token, event.head),
        last_failure=None,
    )
    if reached := bounds.reached(following, moment.ms):
        return bounds.limit(step, following, reached, moment)
    delay_ms = event.delay_ms if event.delay_ms >= 0 else round(step.loop_delay_s * 1000)
    return later(following, moment, delay_ms)


def _failed(step: Work, task: Task, event: StepFailed, moment: Moment) -> Register:
    failures = task.failures + 1
    if task.wrap_up:
        return bounds.wrap_up_failed(task, moment, event.failure)
    if is_exhausted(step.retry, event.failure, failures):
        return bounds.ended(task, moment, "failed", task.iteration, failure=event.failure)
    drawn = draw(moment.run, step.id, task.iteration, task.attempt)
    delay_ms = retry_delay_ms(step.retry, failures, drawn, event.failure.retry_after_ms)
    again = msgspec.structs.replace(
        task,
        parent=moment.id,
        attempt=task.attempt + 1,
        failures=failures,
        checkpoint=_standing_checkpoint(task, event.token, event.head),
        last_failure=event.failure,
    )
    return later(again, moment, delay_ms)


def lost(task: Task, moment: Moment) -> Register:
    """Return the next value after an execution that will never settle."""
    losses = task.losses + 1
    if losses > LOSSES_MAX:
        failure = Failure(
            "worker_lost",
            f"{losses} workers vanished while they executed iteration {task.iteration}; "
            "the task may be what kills them",
            retryable=False,
        )
        return bounds.ended(task, moment, "failed", task.iteration, failure=failure)
    again = msgspec.structs.replace(
        task, parent=moment.id, attempt=task.attempt + 1, losses=losses, checkpoint=-1
    )
    return later(again, moment, loss_delay_ms(losses))


def later(task: Task, moment: Moment, delay_ms: int) -> Register:
    """Return the task now, held back by its receiver, or asleep in the timers stream."""
    if delay_ms <= 0:
        return task
    due_ms = moment.ms + min(delay_ms, DELAY_MS_MAX)
    if delay_ms <= DELAY_BY_WORKER_MS_MAX:
        return Delayed(parent=moment.id, task=task, due_ms=due_ms)
    return Sleeping(parent=moment.id, task=task, due_ms=due_ms)


def _standing_checkpoint(task: Task, token: int, head: int) -> int:
    """The checkpoint after an execution: the head it names is one it wrote itself."""
    return head if head > token else task.checkpoint


def _due(register: LiveRegister, moment: Moment) -> Register:
    if not isinstance(register, Delayed):
        return register
    if moment.ms + DUE_TOLERANCE_MS < register.due_ms:
        # The receiver's clock is ahead: the server's timers take the rest of the wait.
        return Sleeping(parent=moment.id, task=register.task, due_ms=register.due_ms)
    return msgspec.structs.replace(register.task, parent=moment.id)


def _timer(step: Work, register: LiveRegister, event: TimerFired, moment: Moment) -> Register:
    match event.kind:
        case "wake":
            if not isinstance(register, Sleeping) or moment.ms < register.due_ms:
                return register
            return msgspec.structs.replace(register.task, parent=moment.id)
        case "step_deadline":
            return bounds.deadline(step, register, moment)
        case "run_deadline":
            return register
        case _:
            assert_never(event.kind)
