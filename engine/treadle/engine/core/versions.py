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
from treadle.sdk.versions import begins_anew, under


def is_boundary(register: LiveRegister, event: RegisterEvent) -> bool:
    """True if an iteration begins by this event, of a loop that follows its workflow."""
    task = task_of(register)
    if not task.follows or task.wrap_up:
        return False
    if isinstance(register, Task):
        return isinstance(event, StepContinued | StepWaiting)
    return begins_anew(task) and isinstance(register, Parked | Sleeping | Delayed)


def adopted(
    register: LiveRegister, old: AgentLoopStep, new: AgentLoopStep, version: str
) -> LiveRegister:
    """Return the register of a loop whose next iteration is under another version."""
    task = under(task_of(register), old, new, version)
    return task if isinstance(register, Task) else msgspec.structs.replace(register, task=task)
