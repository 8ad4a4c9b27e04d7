"""How a simulated run begins that does not begin at once: queued in a lane, scheduled, or both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.engine.core import Moment, Plan
from treadle.sdk import payload
from treadle.sdk.messages import LaneEntered, LaneGranted, RunRequested
from treadle.sdk.metadata import Given, checked
from treadle.sdk.run import RunDocument

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World

SIMULATED_LANE = "simulated"


def first_request(
    plan: Plan,
    input: Any,
    metadata: Mapping[str, Given] | None,
    queued_s: float,
    start_after_s: float,
) -> RunRequested:
    """Return the request of a simulated run."""
    return RunRequested(
        workflow=plan.definition.name,
        definition=plan.hash,
        input=msgspec.Raw(payload.encode("input of the run", input)),
        metadata=checked(metadata or {}),
        lane=SIMULATED_LANE if queued_s > 0 else "",
        start_after_ms=round(start_after_s * 1000),
    )


class Beginning:
    """The lane of a run, which others hold for ``queued_s`` seconds; 0 is no lane."""

    def __init__(self, world: World, queued_s: float) -> None:
        self._world = world
        self._queued_s = queued_s

    @property
    def is_queued(self) -> bool:
        """True if others are before the run."""
        return self._queued_s > 0

    def requested(self, event: RunRequested, moment: Moment) -> None:
        """Grant the lane later to a run that was requested in it."""
        if self.is_queued and not event.is_scheduled:
            self.entered(event.lane, moment)

    def entered(self, lane: str, moment: Moment) -> None:
        """Grant the lane later to a run that is in it."""
        granted = LaneGranted(lane=lane, request=moment.sequence)
        self._world.after("lane", self._queued_s, lambda: self._world.publish(granted))

    def enter(self, run: RunDocument) -> None:
        """Let a scheduled run enter its lane."""
        entered = LaneEntered(lane=run.lane, request=run.requested)
        self._world.after("entered", 0, lambda: self._world.publish(entered))
