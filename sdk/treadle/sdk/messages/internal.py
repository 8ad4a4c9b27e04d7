"""Engine to engine: what a timer fires, and what engines tell a run of other runs."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.messages.common import NO_RAW, Failure
from treadle.sdk.spending import NOTHING, Spent

TimerKind = Literal["step_deadline", "run_deadline", "run_start", "wake"]


class _FromEngine(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


class TimerFired(_FromEngine, frozen=True, tag="timer.fired", tag_field="event", kw_only=True):
    """A schedule fired. It is a hint: the decision is always a compare-and-set."""

    kind: TimerKind
    step: str = ""
    type: str = ""
    token: int = 0
    due_ms: int = 0


class EventMatched(
    _FromEngine, frozen=True, tag="run.event_matched", tag_field="event", kw_only=True
):
    """A published event fits what a step waits for: the first one is taken, and twice is once."""

    step: str
    request: int
    """Sequence of the request it is for: an id may be used again after its run has gone."""
    name: str = ""
    """Of the event."""
    id: str = ""
    """Of the event, as its publisher chose it."""
    published: int = 0
    """Sequence of the event among those published."""
    payload: msgspec.Raw = NO_RAW
    failure: Failure | None = None
    """Why no event can fit: what the match asks of the run is not there."""


class LaneEntered(
    msgspec.Struct,
    frozen=True,
    omit_defaults=True,
    tag="run.lane_entered",
    tag_field="event",
    kw_only=True,
):
    """It is time for a scheduled run: its place in its lane is where this is stored. Twice is
    once."""

    lane: str
    request: int
    """Sequence of the request it is for: an id may be used again after its run has gone."""


class LaneGranted(
    _FromEngine, frozen=True, tag="run.lane_granted", tag_field="event", kw_only=True
):
    """Every earlier request of the run's lane is over: a queued run begins. Twice is once."""

    lane: str
    request: int
    """Sequence of the request it is for: an id may be used again after its run has gone."""


class RunSuperseded(
    _FromEngine, frozen=True, tag="run.superseded", tag_field="event", kw_only=True
):
    """A later start of the run's singleton takes its place: the run is cancelled. Twice is once."""

    by: str
    request: int
    """Sequence of the request it is for, as in ``LaneGranted``."""


class ChildEnded(_FromEngine, frozen=True, tag="run.child_ended", tag_field="event", kw_only=True):
    """A run that a step of this run started has ended. The step's output is here from now on."""

    step: str
    child: str
    workflow: str = ""
    attempt: int = 1
    outcome: Literal["completed", "failed", "cancelled"]
    output: msgspec.Raw = NO_RAW
    """The child's result, if it has completed: a copy, which outlives the child."""
    failure: Failure | None = None
    failed_step: str = ""
    """The child's step that failed; empty if none is to blame."""
    spent: Spent = NOTHING
    """What the child has used, with its own children."""


class ParentEnded(
    _FromEngine, frozen=True, tag="run.parent_ended", tag_field="event", kw_only=True
):
    """The step that started this run waits for it no more: the run is cancelled. Twice is once."""

    reason: str = ""
