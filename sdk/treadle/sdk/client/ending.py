"""How steps ended that say no more than that they did: whose time was over, or never came. Pure."""

from __future__ import annotations

from typing import Literal

from treadle.sdk.definition import OnTimeout, Step, WaitStep
from treadle.sdk.run import RunDocument, StepEntry, StepStatus, is_kept

ViewedStepStatus = StepStatus | Literal["not_reached"]
"""``not_reached``: its run has ended before its turn came."""


def timed_out(run: RunDocument, step: Step | None, entry: StepEntry) -> OnTimeout | Literal[""]:
    """Return what the end of its time did to a step that waited; '' if it did not end it.

    Of a step that was taken over nobody says so any more.
    """
    if not isinstance(step, WaitStep) or is_kept(run, step.id):
        return ""
    if entry.status == "failed" and entry.failure and entry.failure.type == "timeout":
        return "fail"
    # What it waited for would have been an event of the run.
    is_unmet = entry.status == "completed" and entry.event[:1] not in ("", "e")
    return "complete" if is_unmet else ""


def timeout_text(ended: OnTimeout | Literal[""]) -> str:
    """Return what became of a step whose time was over; '' of any other."""
    return {"": "", "fail": "failed", "complete": "completed with null"}[ended]
