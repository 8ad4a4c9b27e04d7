"""The bounds of a loop: when one is reached, and what that does to the step.

A bound never destroys work: the failing end keeps the last output, ``wrap_up`` gives one more
iteration to put the result together, ``park`` keeps the whole state until it is resumed.
Every one of them, deadline, iteration count or budget, goes through ``limit``.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from treadle.engine.core.flow import slots_of
from treadle.engine.core.maps import all_failed
from treadle.engine.core.moment import Moment
from treadle.engine.core.pausing import release
from treadle.sdk import spending
from treadle.sdk.definition import AgentLoopStep, TaskStep
from treadle.sdk.limits import DURATION_S_MAX, ITERATIONS_MAX
from treadle.sdk.messages import (
    ChunkDone,
    Delayed,
    Ended,
    Failure,
    Inline,
    LiveRegister,
    Outcome,
    Parked,
    Queued,
    Register,
    ResumeRequested,
    Sleeping,
    Task,
)
from treadle.sdk.run import MAX_ATTEMPTS
from treadle.sdk.spending import SpendingLimits, Spent

WRAP_UP_MS = 300_000
"""A wrapping-up iteration has its own timeout and five minutes on top: a reached bound still
bounds, and waiting for a worker, or losing one, does not use up the last iteration."""

MAX_ITERATIONS = "max_iterations"
MAX_DURATION = "max_duration"


def task_of(register: LiveRegister) -> Task:
    """Return the task inside a live register."""
    match register:
        case Task():
            return register
        case Queued() | Delayed() | Sleeping() | Parked():
            return register.task
        case _:
            assert_never(register)


def reached(task: Task, now_ms: int) -> str:
    """Return the name of the bound that forbids this task to be dispatched, or ''."""
    if task.wrap_up:
        return task.wrap_up
    if task.iteration >= task.max_iterations:
        return MAX_ITERATIONS
    if task.deadline_ms and now_ms >= task.deadline_ms:
        return MAX_DURATION
    return overspent(task)


def overspent(task: Task) -> str:
    """Return the name of the budget that is used up, or ''."""
    if reason := spending.reached(task.limits, spent_by(task)):
        return reason
    is_over = task.budgets and spending.shared_reached(task.budgets, spent_by(task))
    return spending.RUN_BUDGET if is_over else ""


def spent_by(task: Task) -> Spent:
    """Return what a step has used so far, as far as its executions told."""
    return spending.plus(task.spent, task.spent_now)


def limit(
    step: TaskStep | AgentLoopStep,
    task: Task,
    reason: str,
    moment: Moment,
    *,
    is_executing: bool = False,
) -> Register:
    """Return what a reached bound makes of the step. ``task`` is the one it stops.

    ``is_executing`` says that the task was given out: its execution is fenced off, whatever it
    saved has to be read, and the next execution of that iteration is another attempt.
    """
    on_limit = step.on_limit if isinstance(step, AgentLoopStep) else "fail"
    if task.wrap_up:
        on_limit = "fail"
    following = task
    if is_executing:
        following = msgspec.structs.replace(task, attempt=task.attempt + 1, checkpoint=-1)
    match on_limit:
        case "fail":
            failure = Failure(reason, _explain(task, reason), retryable=False)
            output = _last_output(task)
            return ended(task, moment, "failed", task.counted, output=output, failure=failure)
        case "wrap_up":
            return msgspec.structs.replace(
                following,
                parent=moment.id,
                wrap_up=reason,
                failures=0,
                losses=0,
                deadline_ms=moment.ms + task.timeout_ms + WRAP_UP_MS,
            )
        case "park":
            return Parked(parent=moment.id, task=following, reason=reason, parked_ms=moment.ms)
        case _:
            assert_never(on_limit)


def deadline(step: TaskStep | AgentLoopStep, register: LiveRegister, moment: Moment) -> Register:
    """Return what the fired deadline makes of a live register, whatever it is doing."""
    task = task_of(register)
    if isinstance(register, Parked) or not task.deadline_ms or moment.ms < task.deadline_ms:
        return register
    is_executing = isinstance(register, Task)
    return limit(step, task, task.wrap_up or MAX_DURATION, moment, is_executing=is_executing)


def exhausted(
    step: TaskStep | AgentLoopStep, task: Task, failure: Failure, moment: Moment
) -> Ended | Parked:
    """Return what becomes of a step whose attempts, or workers, are used up.

    ``task`` is the attempt that was the last. One that is parked keeps all its state: a resume
    gives it its attempts again.
    """
    if step.retry.on_exhausted == "fail":
        return ended(task, moment, "failed", task.counted, failure=failure)
    again = msgspec.structs.replace(
        task, parent=moment.id, attempt=task.attempt + 1, checkpoint=-1, last_failure=failure
    )
    return Parked(
        parent=moment.id, task=again, reason=MAX_ATTEMPTS, parked_ms=moment.ms, failure=failure
    )


def wrap_up_failed(task: Task, moment: Moment, failure: Failure) -> Ended:
    """Return the end of a step whose wrapping-up iteration failed: the bound is the cause."""
    text = f"{_explain(task, task.wrap_up)}; wrapping up failed: {failure}"
    cause = Failure(task.wrap_up, text, retryable=False, traceback=failure.traceback)
    output = _last_output(task)
    return ended(task, moment, "failed", task.counted, output=output, failure=cause)


def resume(
    step: TaskStep | AgentLoopStep, register: LiveRegister, event: ResumeRequested, moment: Moment
) -> Register:
    """Return the parked task with raised bounds; unchanged if a bound would stop it again.

    Bounds are raised, never lowered. Time spent parked does not count: the deadline moves by as
    much. The failures of the iteration still count, unless they are what parked it.
    """
    if not isinstance(register, Parked) or register.line or event.step not in ("", step.id):
        return register  # Who waits in a line is no further for being resumed.
    if is_older(moment, register):
        # A pause is over whenever the document says so, and the caller has looked.
        return release(register, moment) if register.paused and not event.step else register
    task = register.task
    if register.failure is not None:
        task = msgspec.structs.replace(task, failures=0, losses=0)
    parked_ms = task.parked_ms + max(0, moment.ms - register.parked_ms)
    raised = msgspec.structs.replace(
        task,
        parent=moment.id,
        max_iterations=_raised(
            task.max_iterations, event.max_iterations, event.add_iterations, ITERATIONS_MAX
        ),
        parked_ms=parked_ms,
        deadline_ms=_raised_deadline(task, event, parked_ms),
        limits=spending.raised(task.limits, event.max_spending, event.add_spending),
        asked=_asked(register),
    )
    # No bound holds a step of a paused run: it was asked before it was held.
    return register if not register.paused and reached(raised, moment.ms) else raised


def woken(parked: Parked, moment: Moment) -> Task:
    """Return the task of a step that waited; the time it waited does not count."""
    return msgspec.structs.replace(release(parked, moment), asked=_asked(parked))


def _asked(parked: Parked) -> int:
    """Return the event with what the step asked while it waited, which made the value; 0 is none.

    The iteration may ask it again: who answers meanwhile is not too late.
    """
    return int(parked.parent[1:]) if parked.asks else 0


def is_older(moment: Moment, parked: Parked) -> bool:
    """True for a resume that was stored before the step parked: it meant an earlier parking.

    Delivered again after the step went on and parked once more, it would raise the bound twice.
    """
    if parked.parent[0] == moment.id[0]:
        return moment.sequence < int(parked.parent[1:])
    return moment.ms < parked.parked_ms


def _raised(present: int, to: int, by: int, most: int) -> int:
    return max(present, min(max(present, to) + max(0, by), most))


def _raised_deadline(task: Task, event: ResumeRequested, parked_ms: int) -> int:
    duration_ms = task.deadline_ms - task.parked_ms - task.started_ms if task.deadline_ms else 0
    if not duration_ms and not event.max_duration_ms:
        return 0
    raised_ms = _raised(
        duration_ms, event.max_duration_ms, event.add_duration_ms, DURATION_S_MAX * 1000
    )
    return task.started_ms + raised_ms + parked_ms


def _last_output(task: Task) -> msgspec.Raw | None:
    """The output of the last committed iteration, which is the input of this one."""
    return task.input.value if task.iteration and isinstance(task.input, Inline) else None


def ended(
    task: Task,
    moment: Moment,
    outcome: Outcome,
    iterations: int,
    *,
    output: msgspec.Raw | None = None,
    failure: Failure | None = None,
    chunk: ChunkDone | None = None,
) -> Ended:
    """Return the value that ends a step, whatever ended it.

    A chunk of a map that fails as a whole fails all its items, if failures are tolerated.
    """
    if outcome == "failed" and task.chunk is not None and task.chunk.tolerated:
        chunk = all_failed(task.chunk)
    return Ended(
        parent=moment.id,
        outcome=outcome,
        iterations=iterations,
        attempt=task.attempt,
        output=output if output is not None else msgspec.Raw(b"null"),
        failure=failure,
        started_ms=task.started_ms,
        ended_ms=moment.ms,
        spent=spent_by(task),
        chunk=chunk,
        slots=slots_of(task),
    )


def too_large(register: LiveRegister, why: str, moment: Moment) -> Ended:
    """Return the end of a step whose next value is larger than the server takes."""
    task = task_of(register)
    failure = Failure("InvalidPayload", why, retryable=False)
    return ended(task, moment, "failed", task.counted, failure=failure)


def _explain(task: Task, reason: str) -> str:
    if reason == MAX_ITERATIONS:
        most = task.counted_max
        return f"the loop took all of its {most} iterations without completing"
    spent = spent_by(task)
    budget = spending.shared_reached(task.budgets, spent)
    if reason == spending.RUN_BUDGET and budget is not None:
        used = _spending(budget.limits, spending.plus(budget.others, spent))
        return (
            f"the budget of run {budget.run!r} was used up after {task.counted} iterations of "
            f"the loop: {used}"
        )
    if reason in spending.SPENDING_REASONS:
        return (
            f"the loop used up its {reason} in {task.counted} iterations of at most "
            f"{task.counted_max}: {_spending(task.limits, spent_by(task))}"
        )
    return (
        f"the loop was still running at its {reason}, after {task.counted} of at most "
        f"{task.counted_max} iterations"
    )


def _spending(limits: SpendingLimits, spent: Spent) -> str:
    """Return what was used of what is bounded, in words."""
    used = (
        ("tool calls", spent.tool_calls, limits.tool_calls),
        ("input tokens", spent.input_tokens, limits.input_tokens),
        ("output tokens", spent.output_tokens, limits.output_tokens),
        ("tokens", spent.total_tokens, limits.total_tokens),
        ("USD", spent.cost_usd, limits.cost_micro_usd / spending.MICRO),
    )
    return ", ".join(f"{have:.12g} of {limit:.12g} {what}" for what, have, limit in used if limit)
