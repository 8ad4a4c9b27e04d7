"""The plans of planners in a run: where each stands as a whole, and what its result is. Pure.

What waits for a planner waits for its plan, and is given the plan's result: the output of the one
step that no other of the plan waits for, or an object of the outputs of all such steps.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.sdk.outcome import chosen
from treadle.sdk.planned import Planned
from treadle.sdk.run import OVER, RunDocument, StepStatus
from treadle.sdk.shape import Shape

Plans = Mapping[str, Planned]
"""By the planner's id."""


def standing(plans: Plans, run: RunDocument, step_id: str) -> StepStatus:
    """Return where a step stands for what waits for it; a planner stands where its plan does."""
    entry = run.steps.get(step_id)
    if entry is None:
        return "waiting"
    plan = plans.get(step_id)
    if plan is None or entry.status != "completed":
        return entry.status
    ends = [standing(plans, run, end) for end in (*plan.last, *plan.handlers)]
    if not OVER.issuperset(ends):
        return "active"
    if any(standing(plans, run, each) == "failed" for each in plan.fatal):
        return "failed"
    return "completed" if "completed" in ends or not ends else "skipped"


def failed_in(plans: Plans, run: RunDocument, step_id: str) -> str:
    """Return the step that failed: itself, or of a planner the one in its plan; '' if none."""
    entry = run.steps.get(step_id)
    if entry is not None and entry.status == "failed":
        return step_id
    plan = plans.get(step_id)
    inner = (
        (failed_in(plans, run, each) for each in plan.names if each in plan.fatal) if plan else ()
    )
    return next(filter(None, inner), "")


def result_of(plans: Plans, run: RunDocument, step_id: str) -> Shape:
    """Return how the output of a step is put together; of a planner, the result of its plan."""
    plan = plans.get(step_id)
    entry = run.steps.get(step_id)
    if plan is None or entry is None or entry.status != "completed":
        return step_id

    def has_completed(each: str) -> bool:
        return standing(plans, run, each) == "completed"

    ids, is_single = chosen(plan.last, plan.handlers, has_completed)
    if is_single:
        return result_of(plans, run, ids[0])
    return {plan.names[each]: result_of(plans, run, each) for each in ids}
