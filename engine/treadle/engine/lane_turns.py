"""One look at a lane at a time in an engine: whoever asks meanwhile shares the next one.

    end of r1 ──> look ──────> done
    end of r2 ──────┐
    end of r3 ──────┴────────> one look for both

Many runs of a lane begin and end at once. A look that begins after an end sees it, so one serves
all who asked before it, and looks do not write the lane's record against each other.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from treadle.engine.lane_log import Lane
from treadle.engine.lanes import Lanes


@dataclass
class _Turn:
    """The next look at a lane."""

    places: int
    task: asyncio.Task[None]


class LaneTurns:
    """Settles lanes, each by one look at a time."""

    def __init__(self, lanes: Lanes) -> None:
        self._lanes = lanes
        self._next: dict[Lane, _Turn] = {}
        self._under_way: dict[Lane, asyncio.Task[None]] = {}

    async def settle(self, lane: Lane, places: int) -> None:
        """Settle a lane by a look that begins after this call; raise what that raises."""
        turn = self._next.get(lane)
        if turn is None:
            turn = self._next[lane] = _Turn(places, asyncio.create_task(self._look(lane)))
        turn.places = max(turn.places, places)
        # One of them that is cancelled does not end it for the others.
        await asyncio.shield(turn.task)

    async def _look(self, lane: Lane) -> None:
        before = self._under_way.get(lane)
        if before is not None:
            await asyncio.wait({before})  # How it ends is for those who asked for it.
        turn = self._next.pop(lane)
        self._under_way[lane] = turn.task
        try:
            await self._lanes.settle(lane, turn.places)
        finally:
            if self._under_way[lane] is turn.task:
                del self._under_way[lane]
