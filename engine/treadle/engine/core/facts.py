"""What a step's register tells the run document, as events of the document's own."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.messages import Failure


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


class StepParked(msgspec.Struct, frozen=True):
    """A step's register parked at a bound."""

    step: str
    reason: str
    iterations: int
    event: str = ""
    position: int = 0


class StepResumed(msgspec.Struct, frozen=True):
    """A parked step's register moves again."""

    step: str
    event: str = ""
    position: int = 0
