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
from treadle.sdk.plans import failed_in, standing
from treadle.sdk.run import OVER, RunDocument, StepStatus

Turn = Literal["wait", "start", "skip", "fail"]


def turn_of(plan: Plan, run: RunDocument, step: Step) -> Turn:
    """Return what a step without an entry may do."""
    if step.id in plan.compensations:
        return "wait"  # Its turn comes when the run will not complete: undoing.py.
    if step.id in plan.handles:
        return _of_handler(_statuses(plan, run, step, plan.handles[step.id]))
    if step.quorum:
        return _of_quorum(plan, run, step)
    return _of_all(_statuses(plan, run, step, step.after))


def not_begun(plan: Plan, run: RunDocument) -> tuple[Step, ...]:
    """Return the steps without an entry, none before what it waits for."""
    order = sorted(plan.steps, key=lambda step_id: plan.order[step_id])
    return tuple(plan.steps[step_id] for step_id in order if step_id not in run.steps)


def is_held(plan: Plan, run: RunDocument) -> bool:
    """True if it is a step's turn, which would begin if the run were not paused."""
    return run.is_paused and any(
        turn_of(plan, run, step) == "start" for step in not_begun(plan, run)
    )


def is_handled(plan: Plan, step: Step) -> bool:
    """True when a run goes on after a step has failed for good."""
    if step.on_failure:
        return True
    followers = plan.outside(step.id) if step.id in plan.plans else plan.followers[step.id]
    if followers and all(follower.quorum for follower in followers):
        return True
    # A failure in a plan is one of its planner.
    planner = plan.planner_of.get(step.id)
    return planner is not None and is_handled(plan, plan.steps[planner])


def unmet(plan: Plan, run: RunDocument, step: Step) -> str:
    """Return the failed step that keeps a quorum from being reached; '' if none did."""
    for other in step.after:
        if plan.steps[other].on_failure:
            continue
        if standing(plan.plans, run, other) == "failed":
            return failed_in(plan.plans, run, other)
    return ""


def _of_handler(statuses: list[StepStatus]) -> Turn:
    if "failed" in statuses:
        return "start"
    return "skip" if OVER.issuperset(statuses) else "wait"


def _of_all(statuses: list[StepStatus]) -> Turn:
    if "failed" in statuses:
        return "skip"
    if not OVER.issuperset(statuses):
        return "wait"
    return "start" if "completed" in statuses or not statuses else "skip"


def _of_quorum(plan: Plan, run: RunDocument, step: Step) -> Turn:
    statuses = _statuses(plan, run, step, step.after)
    completed = statuses.count("completed")
    if completed >= step.quorum:
        return "start"
    if completed + sum(status not in OVER for status in statuses) >= step.quorum:
        return "wait"
    return "fail" if unmet(plan, run, step) else "skip"


def _statuses(
    plan: Plan, run: RunDocument, step: Step, step_ids: tuple[str, ...]
) -> list[StepStatus]:
    # The steps of a plan wait for the planner itself, everybody else for the whole plan.
    planner = plan.planner_of.get(step.id)
    return [
        standing({} if step_id == planner else plan.plans, run, step_id) for step_id in step_ids
    ]
