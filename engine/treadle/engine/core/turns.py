"""Whose turn it is: a step, its neighbours' entries, and what follows from them.

    all of after (quorum 0)   starts when each has completed or was skipped, one completed at least
                              skipped when every one was skipped, or one has failed
    quorum n                  starts when n have completed; the others go on
                              skipped when n can complete no more, or the run fails with that
    on_failure of others      starts when one of them has failed
                              skipped when each is over and none has

Only a failure that is handled leaves a run alive: by an ``on_failure``, or because everything that
waits for the step has a quorum.
"""

from __future__ import annotations

from typing import Literal

from treadle.engine.core.plan import Plan
from treadle.sdk.definition import Step
from treadle.sdk.run import RunDocument, StepEntry

Turn = Literal["wait", "start", "skip", "fail"]

_OVER = frozenset({"completed", "skipped", "failed"})


def turn_of(plan: Plan, run: RunDocument, step: Step) -> Turn:
    """Return what a step without an entry may do."""
    if step.id in plan.compensations:
        return "wait"  # Its turn comes when the run will not complete: undoing.py.
    if step.id in plan.handles:
        return _of_handler(run, plan.handles[step.id])
    if step.quorum:
        return _of_quorum(plan, run, step)
    return _of_all(run, step)


def is_handled(plan: Plan, step: Step) -> bool:
    """True when a run goes on after a step has failed for good."""
    if step.on_failure:
        return True
    followers = plan.followers[step.id]
    return bool(followers) and all(follower.quorum for follower in followers)


def unmet(plan: Plan, run: RunDocument, step: Step) -> str:
    """Return the failed step that keeps a quorum from being reached; '' if none did."""
    for other in step.after:
        entry = run.steps.get(other)
        if entry and entry.status == "failed" and not plan.steps[other].on_failure:
            return other
    return ""


def _of_handler(run: RunDocument, handled: tuple[str, ...]) -> Turn:
    entries = _entries(run, handled)
    if any(entry and entry.status == "failed" for entry in entries):
        return "start"
    return "skip" if all(_is_over(entry) for entry in entries) else "wait"


def _of_all(run: RunDocument, step: Step) -> Turn:
    statuses = {entry.status if entry else "waiting" for entry in _entries(run, step.after)}
    if "failed" in statuses:
        return "skip"
    if statuses - _OVER:
        return "wait"
    return "start" if "completed" in statuses or not statuses else "skip"


def _of_quorum(plan: Plan, run: RunDocument, step: Step) -> Turn:
    entries = _entries(run, step.after)
    completed = sum(entry is not None and entry.status == "completed" for entry in entries)
    if completed >= step.quorum:
        return "start"
    if completed + sum(not _is_over(entry) for entry in entries) >= step.quorum:
        return "wait"
    return "fail" if unmet(plan, run, step) else "skip"


def _entries(run: RunDocument, step_ids: tuple[str, ...]) -> list[StepEntry | None]:
    return [run.steps.get(step_id) for step_id in step_ids]


def _is_over(entry: StepEntry | None) -> bool:
    return entry is not None and entry.status in _OVER
