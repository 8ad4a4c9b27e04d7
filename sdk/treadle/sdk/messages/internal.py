"""Engine to engine: what a timer fires, and what engines tell a run of other runs."""

from __future__ import annotations

from typing import Literal

import msgspec

TimerKind = Literal["step_deadline", "run_deadline", "wake"]


class TimerFired(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag="timer.fired",
    tag_field="event",
    kw_only=True,
):
    """A schedule fired. It is a hint: the decision is always a compare-and-set."""

    kind: TimerKind
    step: str = ""
    type: str = ""
    token: int = 0
    due_ms: int = 0


class LaneGranted(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag="run.lane_granted",
    tag_field="event",
    kw_only=True,
):
    """Every earlier request of the run's lane is over: a queued run begins. Twice is once."""

    lane: str
    request: int
    """Sequence of the request it is for: an id may be used again after its run has gone."""
