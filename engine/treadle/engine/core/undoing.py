"""A run that will not complete undoes what has: the compensations, one by one, newest first.

    running | parked ──failure | cancel──> undoing ──each completed step, newest first──> its end

Whatever was under way is cancelled first. A compensation that fails for good is seen in its step;
the others still run. A cancel of a run that is undoing changes nothing: it may be the same wish,
said twice. Only one that says ``now`` ends it at once.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core import pausing
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.sdk.definition import Step
from treadle.sdk.messages import Failure
from treadle.sdk.run import UNDER_WAY, RunDocument, RunStatus, StepEntry


def end(
    run: RunDocument,
    status: RunStatus,
    moment: Moment,
    *,
    failure: Failure | None = None,
    step: str = "",
) -> RunDocument:
    """Move the run to its terminal status; steps under way become cancelled."""
    return msgspec.structs.replace(
        _halted(run, moment),
        status=status,
        failure=failure,
        failed_step=step,
        ended_ms=moment.ms,
        undoing="",
    )


def begins(
    plan: Plan,
    run: RunDocument,
    status: RunStatus,
    moment: Moment,
    *,
    failure: Failure,
    step: str = "",
) -> RunDocument:
    """Return a run that is to end like this: undoing what has to be undone, or ended."""
    if next_to_undo(plan, run) is None:
        return end(run, status, moment, failure=failure, step=step)
    return msgspec.structs.replace(
        _halted(run, moment),
        status=pausing.shown(run, "running"),
        failure=failure,
        failed_step=step,
        undoing=status,
    )


def next_to_undo(plan: Plan, run: RunDocument) -> Step | None:
    """Return the compensation that comes next: of what has completed last and is not undone."""
    completed = [
        (entry.ended_ms, plan.order[step_id], step_id)
        for step_id, entry in run.steps.items()
        if entry.status == "completed" and _is_due(plan, run, step_id)
    ]
    return plan.steps[plan.steps[max(completed)[2]].compensate] if completed else None


def _is_due(plan: Plan, run: RunDocument, step_id: str) -> bool:
    compensation = plan.steps[step_id].compensate
    return bool(compensation) and compensation not in run.steps


def _halted(run: RunDocument, moment: Moment) -> RunDocument:
    return msgspec.structs.replace(
        run,
        steps={step_id: _cancelled(entry, moment) for step_id, entry in run.steps.items()},
    )


def _cancelled(entry: StepEntry, moment: Moment) -> StepEntry:
    if entry.status not in UNDER_WAY:
        return entry
    return msgspec.structs.replace(entry, status="cancelled", ended_ms=moment.ms)
