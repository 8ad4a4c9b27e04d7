"""Which step of a newer version a loop goes on with, and why it stays if there is none. Pure."""

from __future__ import annotations

from typing import get_args

from treadle.sdk.definition import AgentLoopStep, VersionPolicy, WorkflowDefinition
from treadle.sdk.errors import UserError

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
