"""Loops that follow the newest version of their workflow: what that changes, and when.

    Task ──continue | wait──> the next iteration, under the newest version
    Parked | Sleeping | Delayed, before an iteration begins ──what moves it──> the same

An iteration keeps the version with which it began, whatever becomes of its attempts. Bounds that
somebody has raised stay raised by as much.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core.advance import RegisterEvent
from treadle.engine.core.bounds import task_of
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.messages import (
    Delayed,
    LiveRegister,
    Parked,
    Sleeping,
    StepContinued,
    StepWaiting,
    Task,
)
from treadle.sdk.spending import SpendingLimits, limits_of


def is_boundary(register: LiveRegister, event: RegisterEvent) -> bool:
    """True if an iteration begins by this event, of a loop that follows its workflow."""
    task = task_of(register)
    if not task.follows or task.wrap_up:
        return False
    if isinstance(register, Task):
        return isinstance(event, StepContinued | StepWaiting)
    return task.attempt == 1 and isinstance(register, Parked | Sleeping | Delayed)


def adopted(
    register: LiveRegister, old: AgentLoopStep, new: AgentLoopStep, version: str
) -> LiveRegister:
    """Return the register of a loop whose next iteration is under another version."""
    task = _adopted(task_of(register), old, new, version)
    return task if isinstance(register, Task) else msgspec.structs.replace(register, task=task)


def _adopted(task: Task, old: AgentLoopStep, new: AgentLoopStep, version: str) -> Task:
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
