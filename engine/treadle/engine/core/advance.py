"""One step: its register and an event give the next value of the register.

    Task ──continue──> Task | Delayed | Sleeping      the next iteration
    Task ──wait──────> Parked(waits) | Task           the next iteration, when it is time
    Task ──complete──> Ended(completed) | Task        the next iteration, if a message is unseen
                                                      an unsound plan is a failure
    Task ──fail──────> Task | Delayed | Sleeping      the next attempt, or Ended(failed)
    Task ──lost──────> Task | Delayed                 the next attempt, or Ended(failed)
                       Parked instead of Ended(failed), if the retries say so
    Delayed ──due──> Task        Sleeping ──wake──> Task        Parked ──resume──> Task
    Parked(waits) ──message | wake──> Task
    Parked(line) ──due: it is called──> Task
    Queued ──its limits let it──> Task | Delayed | Sleeping     before every Task under limits
    any live value ──bound──> Ended(failed) | Task(wrap_up) | Parked
    whatever gives a Task, of a paused run ──> Parked(paused) ──resume──> Task

This is the only door to a register. It knows nothing of NATS, clocks or the run document. An
event that does not hold the token of the register's present value, or asks for a move that is
not in the picture, returns the same object: it is stale, and nothing happens.

Messages to a step are not kept in its register: they would take the token from whoever
executes it. The caller says which is the newest (``newest``), and a waiting register holds
which of them it has seen.
"""

from __future__ import annotations

from typing import NamedTuple, TypeGuard, assert_never

import msgspec

from treadle.engine.core import bounds
from treadle.engine.core.fitting import raw_misfit
from treadle.engine.core.flow import RateDeferred, SlotsGranted, gated, granted
from treadle.engine.core.moment import Moment
from treadle.engine.core.pausing import hold
from treadle.engine.core.plan import DELAY_BY_WORKER_MS_MAX
from treadle.engine.core.retry import draw, is_exhausted, is_final, loss_delay_ms, retry_delay_ms
from treadle.sdk import asks, spending
from treadle.sdk.definition import AgentLoopStep, TaskStep
from treadle.sdk.limits import DURATION_S_MAX, ITERATIONS_MAX, LOSSES_MAX
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Failure,
    Inline,
    LiveRegister,
    MessageSent,
    Parked,
    Queued,
    Register,
    ResumeRequested,
    Settled,
    Sleeping,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    Task,
    TaskDue,
    TaskLost,
    TimerFired,
)
from treadle.sdk.planned import judged
from treadle.sdk.spending import NOTHING, Spent

DELAY_MS_MAX = DURATION_S_MAX * 1000
"""Delays that a handler asks for are cut at the longest that a definition may ask for."""

DUE_TOLERANCE_MS = 50
"""A receiver's clock may run this much ahead of the server's before it is not believed."""

REASON_CHARS_MAX = 500
"""Of what a step says it waits for: it stands in the run's document."""

Work = TaskStep | AgentLoopStep
RegisterEvent = (
    Settled | TaskDue | TimerFired | ResumeRequested | MessageSent | SlotsGranted | RateDeferred
)


class Placed(NamedTuple):
    """A register's value and the sequence at which it is stored: the fencing token."""

    sequence: int
    register: Register


def is_live(register: Register) -> TypeGuard[LiveRegister]:
    """True while the register can still move."""
    return not isinstance(register, Ended)


def is_still(register: Register) -> bool:
    """True if it has ended, or parked: who waits in a line goes on as one that is queued does."""
    return isinstance(register, Ended) or (isinstance(register, Parked) and not register.line)


def advance(
    step: Work,
    at: Placed,
    event: RegisterEvent,
    moment: Moment,
    newest: int = 0,
    *,
    is_paused: bool = False,
) -> Register:
    """Return the register's next value, or the same object when the event is stale.

    ``newest`` is the sequence of the newest message to the step; 0 is none. Only a verdict that
    takes messages asks for it, and it has to know those stored before the verdict. ``is_paused``
    says that the run is paused, so that no task is given out.
    """
    if is_paused and _is_held_since(at.register, event, moment):
        return at.register
    new = _moved(step, at, event, moment, newest)
    if new is at.register:
        return new
    if is_paused:
        return hold(new, moment)
    return new if isinstance(event, SlotsGranted) else gated(new, moment)


def _is_held_since(register: Register, event: RegisterEvent, moment: Moment) -> bool:
    """True for a resume of a step that a later pause holds: it comes again, and meant another.

    Released and held by it once more, the step would take other resumes for new ones.
    """
    return (
        isinstance(event, ResumeRequested)
        and isinstance(register, Parked)
        and register.paused
        and bounds.is_older(moment, register)
    )


def _moved(step: Work, at: Placed, event: RegisterEvent, moment: Moment, newest: int) -> Register:
    register = at.register
    if isinstance(register, Ended):
        return register
    match event:
        case SlotsGranted() | RateDeferred():
            return _limited(at, event, moment)
        case TimerFired():
            return _timer(step, register, event, moment)
        case ResumeRequested():
            return bounds.resume(step, register, event, moment)
        case TaskDue():
            return _due(register, moment) if event.token == at.sequence else register
        case MessageSent():
            return _message(step, register, event, moment)
        case StepContinued() | StepWaiting() | StepCompleted() | StepFailed() | TaskLost():
            if event.token != at.sequence or not isinstance(register, Task):
                return register
            return _settled(step, register, judged(step, event), moment, newest)
        case _:
            assert_never(event)


def _limited(at: Placed, event: SlotsGranted | RateDeferred, moment: Moment) -> Register:
    queued = at.register
    if not isinstance(queued, Queued) or event.token != at.sequence:
        return queued
    if isinstance(event, SlotsGranted):
        return granted(queued, event, moment)
    waited_ms = queued.task.queued_ms + max(0, event.due_ms - queued.since_ms)
    task = msgspec.structs.replace(
        queued.task, parent=moment.id, reserved_ms=event.due_ms, queued_ms=waited_ms
    )
    return later(task, moment, event.due_ms - moment.ms)


def _settled(step: Work, task: Task, event: Settled, moment: Moment, newest: int) -> Register:
    match event:
        case StepContinued():
            return _continued(step, task, event, moment)
        case StepWaiting():
            return _waiting(step, task, event, moment, newest)
        case StepCompleted():
            return _completed(step, task, event, moment, newest)
        case StepFailed():
            return _failed(step, task, event, moment)
        case TaskLost():
            return _lost(step, task, moment)
        case _:
            assert_never(event)


def _continued(step: Work, task: Task, event: StepContinued, moment: Moment) -> Register:
    if not isinstance(step, AgentLoopStep):
        return _not_a_loop(task, moment, "continue_in_task", f"step {step.id!r} is a task")
    following = _following(task, event, moment)
    if reached := bounds.reached(following, moment.ms):
        return bounds.limit(step, following, reached, moment)
    delay_ms = event.delay_ms if event.delay_ms >= 0 else round(step.loop_delay_s * 1000)
    return later(following, moment, delay_ms)


def _waiting(step: Work, task: Task, event: StepWaiting, moment: Moment, newest: int) -> Register:
    """Commit the iteration; the next one is held back, unless what it waits for is there."""
    if not isinstance(step, AgentLoopStep):
        return _not_a_loop(task, moment, "wait_in_task", f"step {step.id!r} is a task")
    following = _following(task, event, moment)
    if event.uncounted:
        most = min(task.max_iterations + 1, ITERATIONS_MAX)
        following = msgspec.structs.replace(
            following, max_iterations=most, uncounted=task.uncounted + 1
        )
    if reached := bounds.reached(following, moment.ms):
        return bounds.limit(step, following, reached, moment)
    # A handler that does not read messages waits for those that come from here on.
    seen = following.seen if event.takes_messages else moment.sequence
    due_ms = max(0, min(event.due_ms, moment.ms + DELAY_MS_MAX))
    if newest > seen or 0 < due_ms <= moment.ms:
        asked = moment.sequence if event.asks else 0
        return msgspec.structs.replace(following, asked=asked)
    return Parked(
        parent=moment.id,
        task=following,
        reason=event.reason[:REASON_CHARS_MAX],
        parked_ms=moment.ms,
        waits=True,
        due_ms=due_ms,
        seen=seen,
        asks=asks.bounded(event.asks),
        line=event.line,
    )


def _completed(
    step: Work, task: Task, event: StepCompleted, moment: Moment, newest: int
) -> Register:
    """End the step; one that takes messages goes on if there is one it has not seen.

    An output that does not fit what is declared of it fails the step for good: another attempt has
    nothing to go by.
    """
    if event.takes_messages:
        following = _following(task, event, moment)
        if newest > following.seen and not bounds.reached(following, moment.ms):
            return following
    if task.chunk is not None and event.chunk is None:
        failure = Failure(
            "worker_too_old",
            f"worker {event.worker!r} took the items {task.chunk.first} and following of a map for "
            "one task; update it",
            retryable=False,
        )
        return bounds.ended(task, moment, "failed", 0, failure=failure)
    done = _with_spent(task, event.spent)
    what = f"the output of step {step.id!r}"
    unfit = raw_misfit("invalid_output", what, step.output_schema, event.output)
    if unfit is not None:
        return bounds.ended(done, moment, "failed", task.counted, failure=unfit)
    iterations, output = task.counted + 1, event.output
    return bounds.ended(done, moment, "completed", iterations, output=output, chunk=event.chunk)


def _following(
    task: Task, event: StepContinued | StepWaiting | StepCompleted, moment: Moment
) -> Task:
    """Return the first attempt of the next iteration, with this one committed."""
    return msgspec.structs.replace(
        task,
        parent=moment.id,
        iteration=task.iteration + 1,
        attempt=1,
        failures=0,
        losses=0,
        input=Inline(event.output),
        checkpoint=_standing_checkpoint(task, event.token, event.head),
        last_failure=None,
        # Nobody has seen what was stored after the verdict itself.
        seen=max(task.seen, min(event.seen, moment.sequence)),
        spent=spending.plus(task.spent, spending.at_least(task.spent_now, event.spent)),
        spent_now=NOTHING,
        asked=0,
    )


def _with_spent(task: Task, spent: Spent) -> Task:
    """Return the task with what its iteration has used, as an attempt told at its end.

    The attempt told all of the iteration, so it replaces what was known, and never lowers it.
    """
    return msgspec.structs.replace(task, spent_now=spending.at_least(task.spent_now, spent))


def _not_a_loop(task: Task, moment: Moment, type: str, what: str) -> Register:
    failure = Failure(type, f"{what}; only an agent loop does that", retryable=False)
    return bounds.ended(task, moment, "failed", 0, failure=failure)


def _failed(step: Work, task: Task, event: StepFailed, moment: Moment) -> Register:
    failures = task.failures + 1
    task = _with_spent(task, event.spent)
    if task.wrap_up:
        return bounds.wrap_up_failed(task, moment, event.failure)
    if is_exhausted(step.retry, event.failure, failures):
        if is_final(step.retry, event.failure):
            return bounds.ended(task, moment, "failed", task.counted, failure=event.failure)
        last = msgspec.structs.replace(task, failures=failures)
        return bounds.exhausted(step, last, event.failure, moment)
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
    if reached := bounds.overspent(again):
        failed = msgspec.structs.replace(again, attempt=task.attempt)
        return bounds.limit(step, failed, reached, moment, is_executing=True)
    return later(again, moment, delay_ms)


def lost(step: Work, task: Task, moment: Moment) -> Register:
    """Return the next value after an execution that will never settle."""
    return gated(_lost(step, task, moment), moment)


def _lost(step: Work, task: Task, moment: Moment) -> Register:
    losses = task.losses + 1
    if losses > LOSSES_MAX:
        what = f"iteration {task.iteration}" if task.loop else "it"
        if task.chunk is not None:
            last = task.chunk.first + task.chunk.count - 1
            what = f"the items {task.chunk.first} to {last}"
        failure = Failure(
            "worker_lost",
            f"{losses} workers vanished while they executed {what}; the task may be what kills "
            "them",
            retryable=False,
        )
        return bounds.exhausted(step, task, failure, moment)
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
    if isinstance(register, Parked) and register.line:
        return bounds.woken(register, moment)
    if not isinstance(register, Delayed):
        return register
    if moment.ms + DUE_TOLERANCE_MS < register.due_ms:
        # The receiver's clock is ahead: the server's timers take the rest of the wait.
        return Sleeping(parent=moment.id, task=register.task, due_ms=register.due_ms)
    return msgspec.structs.replace(register.task, parent=moment.id)


def _message(step: Work, register: LiveRegister, event: MessageSent, moment: Moment) -> Register:
    if not isinstance(register, Parked) or not register.waits or event.step != step.id:
        return register
    return bounds.woken(register, moment) if moment.sequence > register.seen else register


def _timer(step: Work, register: LiveRegister, event: TimerFired, moment: Moment) -> Register:
    match event.kind:
        case "wake":
            if not isinstance(register, Sleeping | Parked) or not register.due_ms:
                return register
            if moment.ms < register.due_ms:
                return register
            if isinstance(register, Parked):
                return bounds.woken(register, moment)
            return msgspec.structs.replace(register.task, parent=moment.id)
        case "step_deadline":
            return bounds.deadline(step, register, moment)
        case "run_deadline" | "run_start":
            return register
        case _:
            assert_never(event.kind)
