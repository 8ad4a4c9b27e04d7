"""Steps that somebody else completes: an answer of a person, or the end of their time."""

from __future__ import annotations

import msgspec

from treadle.engine.core.facts import StepEnded
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.sdk import approvals
from treadle.sdk.cancel_on import is_cancel_id
from treadle.sdk.definition import ApprovalStep, EventStep, SignalStep, WaitStep
from treadle.sdk.messages import EventMatched, Failure, MessageSent
from treadle.sdk.run import RunDocument


def timed_out(step: WaitStep, moment: Moment) -> StepEnded:
    """Return the end of a step whose time is over."""
    if step.on_timeout == "complete":
        return StepEnded(step.id, "completed", 0, event=moment.id)
    failure = Failure(
        "timeout",
        f"{_awaited(step)} did not come within {step.timeout_s:g} s",
        retryable=False,
    )
    return StepEnded(step.id, "failed", 0, failure, moment.id)


def answered(plan: Plan, run: RunDocument, event: MessageSent, moment: Moment) -> StepEnded | None:
    """Return the end of an approval that a message decides; None if it decides nothing.

    The first one that decides is the decision: the step is over for those behind it.
    """
    step = plan.steps.get(event.step)
    entry = run.steps.get(event.step)
    if not isinstance(step, ApprovalStep) or entry is None or entry.status != "active":
        return None
    if not approvals.is_decision(step, event):
        return None
    failure = approvals.rejection(event)
    return StepEnded(step.id, "failed" if failure else "completed", 0, failure, moment.id)


def matched(plan: Plan, run: RunDocument, event: EventMatched, moment: Moment) -> StepEnded | None:
    """Return the end of a step for which an event was published; None if it changes nothing.

    The first event that fits is taken; one that a step before it was given is used up.
    """
    step = plan.steps.get(event.step)
    entry = run.steps.get(event.step)
    if not isinstance(step, EventStep) or entry is None or entry.status != "active":
        return None
    if event.request != run.requested:
        return None
    if event.failure is not None:
        return StepEnded(step.id, "failed", 0, event.failure, moment.id)
    if event.published in used_before(run, step.id):
        return None
    return StepEnded(step.id, "completed", 0, event=moment.id, position=event.published)


def is_cancellable(run: RunDocument) -> bool:
    """True while an event may cancel the run: it neither undoes nor has ended."""
    return not run.is_terminal and not run.undoing


def is_waiting(run: RunDocument, wait: str) -> bool:
    """True while an event may end what waits: an active step, or the run for what cancels it."""
    if is_cancel_id(wait):
        return is_cancellable(run)
    entry = run.steps.get(wait)
    return entry is not None and entry.status == "active"


def cancelling(plan: Plan, run: RunDocument, event: EventMatched) -> Failure | None:
    """Return why an event cancels the run; None if it is about a step, or changes nothing."""
    if event.step not in plan.cancels or event.request != run.requested or run.undoing:
        return None
    named = f" ({event.id})" if event.id else ""
    return Failure("cancelled", f"event {event.name!r}{named} was published", retryable=False)


def used_before(run: RunDocument, wait: str) -> tuple[int, ...]:
    """Return the published events that are none for a step which waits; of the run's wait to be
    cancelled, those that cancelled a run before this one."""
    return run.cancelled_before_by if is_cancel_id(wait) else run.used.get(wait, ())


def begins(plan: Plan, run: RunDocument, step: EventStep) -> RunDocument:
    """Return the run with what a step that begins to wait may not take: what steps before it got.

    One of them that still waits, behind a quorum, waits beside it from here on: both may get the
    same event, in whatever order engines hear of the two.
    """
    entries = (run.steps.get(name) for name in plan.waited_before[step.id])
    used = tuple(entry.position for entry in entries if entry and entry.position)
    return msgspec.structs.replace(run, used={**run.used, step.id: used}) if used else run


def _awaited(step: WaitStep) -> str:
    match step:
        case EventStep():
            fits = f" with {step.match}" if step.match else ""
            return f"event {step.event!r}{fits}"
        case SignalStep():
            return f"signal {step.signal!r}"
        case ApprovalStep():
            return "an answer"
