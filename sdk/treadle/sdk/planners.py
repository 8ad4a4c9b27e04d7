"""Planners of a definition: are their bounds sound, and their plans' ids free?"""

from __future__ import annotations

from collections.abc import Iterator

from treadle.sdk import wording
from treadle.sdk.definition import PlannerStep, WorkflowDefinition
from treadle.sdk.errors import InvalidId, Problem
from treadle.sdk.identifier import is_id
from treadle.sdk.limits import ALLOWED_TASKS_MAX, STEPS_MAX, WORD_CHARS_MAX

SEPARATOR = "--"
"""Between a planner's id and that of a step of its plan."""


def has_planners(definition: WorkflowDefinition) -> bool:
    """True when runs of the definition may get further steps."""
    return any(isinstance(step, PlannerStep) for step in definition.steps)


def problems_of_planners(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield what is wrong with the planners of a definition, or of a plan."""
    steps = list(enumerate(definition.steps))
    planners = [(i, step) for i, step in steps if isinstance(step, PlannerStep)]
    for i, planner in planners:
        yield from _allowed(planner, wording.field(wording.item("steps", i), "allowed_tasks"))
    most = len(steps) + sum(planner.max_steps for _, planner in planners)
    if planners and most > STEPS_MAX:
        i, _ = max(planners, key=lambda each: each[1].max_steps)
        yield Problem(
            wording.field(wording.item("steps", i), "max_steps"),
            f"the steps and the max_steps of the planners are {most} together, and {STEPS_MAX} "
            "are allowed, because every transition reads and writes an entry for each. Lower it.",
        )
    taken = tuple(f"{planner.id}{SEPARATOR}" for _, planner in planners)
    for i, step in steps:
        if taken and step.id.startswith(taken):
            planner_id = next(each for each in taken if step.id.startswith(each))
            yield Problem(
                wording.field(wording.item("steps", i), "id"),
                f"ids that begin with {wording.shown(planner_id)} are those of the steps that the "
                "planner adds. Rename this step.",
            )


def _allowed(planner: PlannerStep, path: str) -> Iterator[Problem]:
    if len(planner.allowed_tasks) > ALLOWED_TASKS_MAX:
        yield Problem(
            path,
            f"it has {len(planner.allowed_tasks)} task types, and {ALLOWED_TASKS_MAX} are "
            "allowed. Leave it out to allow all.",
        )
    for j, name in enumerate(planner.allowed_tasks):
        if not is_id(name):
            yield Problem(wording.item(path, j), str(InvalidId("task type", name[:WORD_CHARS_MAX])))
        elif name in planner.allowed_tasks[:j]:
            yield Problem(
                wording.item(path, j), f"{wording.shown(name)} is there twice. Remove one of them."
            )
