"""Steps that start runs: what their children's ends make of them.

    active ──request of a detached run──────────> completed
    active ──the run cannot be requested────────> failed
    active ──child completed────────────────────> completed, with its result
    active ──child failed, attempts are left────> active(next attempt, due later) ──wake──> active
    active ──child failed or cancelled──────────> failed

A child that comes late, of an earlier attempt or of a step that is over, changes nothing.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core.facts import ChildStarted
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.core.progress import over, with_step
from treadle.engine.core.retry import draw, is_exhausted, retry_delay_ms
from treadle.sdk.children import CHILD_CANCELLED, CHILD_FAILED, ParentRun
from treadle.sdk.definition import SubWorkflowStep
from treadle.sdk.messages import ChildEnded, Failure
from treadle.sdk.run import RunDocument, StepEntry, StepStatus, child_of
from treadle.sdk.run_budgets import is_bounded
from treadle.sdk.spending import plus

MESSAGE_CHARS_MAX = 2_000
"""Of what a child says of its failure: each level of nesting quotes the one below."""


def link(run: RunDocument, step: SubWorkflowStep) -> ParentRun:
    """Return what the run that a step starts is told of its parent."""
    above = run.parent
    return ParentRun(
        run=run.run,
        step=step.id,
        attempt=run.steps[step.id].attempt,
        root=above.root if above else run.run,
        depth=above.depth + 1 if above else 1,
        detached=step.detached,
        bounded=is_bounded(run) and not step.detached,
        timeout_ms=round(step.timeout_s * 1000),
    )


def awaits(run: RunDocument, child: str, link: ParentRun) -> bool | None:
    """Return whether a run waits for a child; None if this document may be too old to say."""
    if run.is_terminal or child_of(run, link.step, link.attempt) != child:
        return False
    entry = run.steps.get(link.step)
    if entry is None or entry.attempt < link.attempt:
        return None
    return entry.status == "active" and entry.attempt == link.attempt


def started(plan: Plan, run: RunDocument, event: ChildStarted, moment: Moment) -> RunDocument:
    """Complete a detached step whose run is requested; fail one whose run cannot be."""
    found = _standing(plan, run, event.step, event.attempt)
    if found is None:
        return run
    step, entry = found
    if event.failure is not None:
        return over(plan, run, step, _done(entry, "failed", moment, event.failure), moment)
    if not step.detached:
        return run
    return over(plan, run, step, _done(entry, "completed", moment), moment)


def ended(plan: Plan, run: RunDocument, event: ChildEnded, moment: Moment) -> RunDocument:
    """Complete or fail the step, or let it start another run."""
    found = _standing(plan, run, event.step, event.attempt)
    if found is None or event.child != child_of(run, event.step):
        return run
    step, entry = found
    if step.detached:
        return run
    entry = msgspec.structs.replace(entry, spent=plus(entry.spent, event.spent))
    if event.outcome == "completed":
        return over(plan, run, step, _done(entry, "completed", moment), moment)
    failure = failure_of(event)
    if _is_final(step, event, failure, entry.attempt):
        return over(plan, run, step, _done(entry, "failed", moment, failure), moment)
    drawn = draw(run.run, step.id, 0, entry.attempt)
    delay_ms = retry_delay_ms(step.retry, entry.attempt, drawn, failure.retry_after_ms)
    again = msgspec.structs.replace(
        entry,
        attempt=entry.attempt + 1,
        failure=failure,
        due_ms=moment.ms + delay_ms if delay_ms else 0,
    )
    return with_step(run, step.id, again)


def woken(run: RunDocument, step: SubWorkflowStep, moment: Moment) -> RunDocument:
    """Let a step start its next run, once that is due."""
    entry = run.steps[step.id]
    if not entry.due_ms or moment.ms < entry.due_ms:
        return run
    return with_step(run, step.id, msgspec.structs.replace(entry, due_ms=0))


def failure_of(event: ChildEnded) -> Failure:
    """Return the failure of a step whose child has not completed, with its cause in words."""
    child = f"run {event.child!r} of workflow {event.workflow!r}"
    cause = event.failure or Failure("unknown")
    if event.outcome == "cancelled":
        text = f"{child} was cancelled{f': {cause.message}' if cause.message else ''}"
        return Failure(CHILD_CANCELLED, text[:MESSAGE_CHARS_MAX], retryable=False)
    at = f" in step {event.failed_step!r}" if event.failed_step else ""
    is_late = cause.type == "run_timeout" and not event.failed_step
    return Failure(
        "timeout" if is_late else CHILD_FAILED,
        f"{child} failed{at}: {cause}"[:MESSAGE_CHARS_MAX],
        retryable=cause.retryable or is_late,
        retry_after_ms=cause.retry_after_ms,
        traceback=cause.traceback,
        place=cause.place,
    )


def _is_final(step: SubWorkflowStep, event: ChildEnded, failure: Failure, attempt: int) -> bool:
    """True when the workflow is not started again. A policy names the child's failure, or this."""
    is_named = event.failure is not None and event.failure.type in step.retry.non_retryable
    return is_named or is_exhausted(step.retry, failure, attempt)


def _standing(
    plan: Plan, run: RunDocument, step_id: str, attempt: int
) -> tuple[SubWorkflowStep, StepEntry] | None:
    """Return a step and its entry, if it is at this attempt and under way."""
    step, entry = plan.steps.get(step_id), run.steps.get(step_id)
    if not isinstance(step, SubWorkflowStep) or entry is None:
        return None
    is_there = entry.status == "active" and entry.attempt == attempt and not entry.due_ms
    return (step, entry) if is_there else None


def _done(
    entry: StepEntry, status: StepStatus, moment: Moment, failure: Failure | None = None
) -> StepEntry:
    return msgspec.structs.replace(
        entry,
        status=status,
        ended_ms=moment.ms,
        event=moment.id,
        failure=failure,
    )
