"""What a simulated run that is not over waits for, and what gives it that."""

from __future__ import annotations

from typing import NamedTuple

from treadle.engine.core import Plan
from treadle.sdk.definition import ApprovalStep, EventStep, SignalStep
from treadle.sdk.run import MAX_ATTEMPTS, WAITING, RunDocument, StepEntry


class Waiting(NamedTuple):
    """One thing that a run waits for, and the argument of ``simulate`` that brings it."""

    text: str
    remedy: str


def waits_of(plan: Plan, run: RunDocument) -> list[Waiting]:
    """Return what the run waits for, by step in the order of the workflow; none if it is over."""
    if run.is_terminal:
        return []
    if run.pause is not None and run.is_paused:
        return [Waiting(f"it is paused: {run.pause.reason}", "`resume=Resume(...)`")]
    found = (_wait_of(plan, step_id, run.steps.get(step_id)) for step_id in plan.steps)
    return [each for each in found if each is not None]


def _wait_of(plan: Plan, step_id: str, entry: StepEntry | None) -> Waiting | None:
    step = plan.steps[step_id]
    if entry is None:
        return None
    if isinstance(step, SignalStep) and entry.status == "active":
        text = f"step {step_id!r} waits for the signal {step.signal!r}"
        return Waiting(text, f"`signals={{{step.signal!r}: ...}}`")
    if isinstance(step, EventStep) and entry.status == "active":
        text = f"step {step_id!r} waits for the event {step.event!r}"
        return Waiting(text, f"`events={{{step.event!r}: ...}}`")
    if isinstance(step, ApprovalStep) and entry.status == "active":
        text = f"step {step_id!r} waits for an approval: {step.prompt}".rstrip(": ")
        return Waiting(text, "`answers=...`, a function that returns a `Reply`")
    if entry.status != "parked" or entry.failure is None:
        return None
    if entry.failure.type == WAITING:
        text = f"step {step_id!r} waits for a message: {entry.failure.message}"
        return Waiting(text, f"`messages=[Message({step_id!r}, ...)]`, or `answers=...`")
    if entry.failure.type == MAX_ATTEMPTS:
        text = f"step {step_id!r} is parked: {entry.failure.message}"
        return Waiting(text, "`resume=Resume(...)`")
    text = f"step {step_id!r} is parked at its bound {entry.failure.type}"
    return Waiting(text, "`resume=Resume(...)` with a raised bound")
