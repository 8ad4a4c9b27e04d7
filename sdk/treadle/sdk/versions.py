"""Which step of a newer version a loop goes on with, and with which bounds; or why it stays. Pure.

Bounds that somebody has raised stay raised by as much.
"""

from __future__ import annotations

from typing import get_args

import msgspec

from treadle.sdk.definition import AgentLoopStep, VersionPolicy, WorkflowDefinition
from treadle.sdk.errors import UserError
from treadle.sdk.messages import Task
from treadle.sdk.spending import SpendingLimits, limits_of

POLICIES: tuple[VersionPolicy, ...] = get_args(VersionPolicy)


def checked_policy(policy: str | None) -> VersionPolicy | None:
    """Return a version policy, or none; raise ``UserError`` if there is none of that name."""
    for each in POLICIES:
        if each == policy:
            return each
    if policy is None:
        return None
    raise UserError(
        f"{policy!r} is no version policy. Choose one of {', '.join(POLICIES)}: docs/versions.md."
    )


def successor(newest: WorkflowDefinition, step_id: str, type: str) -> AgentLoopStep | None:
    """Return the loop that a loop of this id and task type goes on with; None if it stays."""
    for step in newest.steps:
        if step.id == step_id and isinstance(step, AgentLoopStep) and step.type == type:
            return step
    return None


def why_it_stays(newest: WorkflowDefinition, version: str, step_id: str, type: str) -> str:
    """Return in words why a loop stays with its version; empty if it does not."""
    if successor(newest, step_id, type) is not None:
        return ""
    found = next((step for step in newest.steps if step.id == step_id), None)
    if found is None:
        what = f"has no step {step_id!r}"
    elif isinstance(found, AgentLoopStep):
        what = f"has it with task type {found.type!r}, which other workers serve"
    else:
        what = f"has it as a {found.__struct_config__.tag}"
    return f"the newest version of its workflow, {version}, {what}"


def begins_anew(task: Task) -> bool:
    """True for the task of a loop that takes newer versions, if it is to begin an iteration."""
    return task.follows and not task.wrap_up and task.attempt == 1


def under(task: Task, old: AgentLoopStep, new: AgentLoopStep, version: str) -> Task:
    """Return the task of a loop whose next iteration is under another version."""
    duration_ms = task.deadline_ms - task.parked_ms - task.started_ms if task.deadline_ms else 0
    before_ms, after_ms = round(old.max_duration_s * 1000), round(new.max_duration_s * 1000)
    duration_ms = _moved(duration_ms, before_ms, after_ms)
    return msgspec.structs.replace(
        task,
        definition=version,
        timeout_ms=round(new.timeout_s * 1000),
        max_iterations=_moved(task.max_iterations, old.max_iterations, new.max_iterations),
        deadline_ms=task.started_ms + duration_ms + task.parked_ms if duration_ms else 0,
        budget_warn_at=new.budget_warn_at,
        budget_force_at=new.budget_force_at,
        limits=_limits(task.limits, limits_of(old), limits_of(new)),
        step_metadata=new.metadata,
    )


def _limits(now: SpendingLimits, old: SpendingLimits, new: SpendingLimits) -> SpendingLimits:
    names = SpendingLimits.__struct_fields__
    moved = {n: _moved(getattr(now, n), getattr(old, n), getattr(new, n)) for n in names}
    return SpendingLimits(**moved)


def _moved(now: int, old: int, new: int) -> int:
    """Return a bound that stood at ``old`` in the definition and stands at ``new``; 0 is none."""
    if not now or not new:
        return new
    return max(1, now + new - old) if old else new
