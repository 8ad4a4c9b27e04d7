"""What a step's register tells the run document, as events of the document's own."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.messages import ChunkDone, Failure
from treadle.sdk.run import MapState
from treadle.sdk.spending import NOTHING, Spent


class StepEnded(msgspec.Struct, frozen=True):
    """A step's register ended."""

    step: str
    outcome: Literal["completed", "failed", "cancelled"]
    iterations: int
    failure: Failure | None = None
    event: str = ""
    """Id of the event that ended the register."""
    position: int = 0
    """Sequence at which the register holds that value."""
    spent: Spent = NOTHING
    chunk: ChunkDone | None = None
    """Of a chunk of a map, unless it failed and no failure is tolerated."""


class StepParked(msgspec.Struct, frozen=True):
    """A step's register parked, at a bound or because its handler waits."""

    step: str
    reason: str
    iterations: int
    event: str = ""
    position: int = 0
    waits: bool = False
    spent: Spent = NOTHING
    failure: Failure | None = None
    """The last failure of a step whose attempts are used up."""


class StepResumed(msgspec.Struct, frozen=True):
    """A parked step's register moves again."""

    step: str
    event: str = ""
    position: int = 0


class RunPlaced(msgspec.Struct, frozen=True):
    """A scheduled run has entered its lane, and somebody has looked who is before it."""

    request: int
    """Sequence of the request it is for."""
    is_queued: bool
    behind: str = ""
    """The run before it, if it is known."""


class StepDecided(msgspec.Struct, frozen=True):
    """What decides about a step was asked, when it was its turn."""

    step: str
    holds: bool
    failure: Failure | None = None
    """Why it cannot be said, or what is wrong with the list."""
    branch: str = ""
    """Of a choice: the branch it takes."""
    map: MapState | None = None
    """Of a map that begins: how its list is cut."""
    duration_ms: int = 0
    """Of a sleep by an expression: how long it is."""
    until_ms: int = 0
    """Of a sleep by an expression or by cron: when it is over."""


class ChildStarted(msgspec.Struct, frozen=True):
    """What came of asking for the run of a step that starts one."""

    step: str
    attempt: int
    failure: Failure | None = None
    """Why there will be no such run."""
