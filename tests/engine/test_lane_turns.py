"""Those who ask for a look at a lane share the next one, which begins after they asked.
Method: looks that the test lets go on, in the place of those at a server."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from treadle.engine.lane_log import Lane
from treadle.engine.lane_turns import LaneTurns
from treadle.engine.lanes import Lanes

LANE, OTHER = Lane.named("a", "main"), Lane.named("b", "main")
BOUND_S = 5.0


class Looks:
    """Looks under way: each begins, and ends when it is let go, or fails."""

    def __init__(self) -> None:
        self.begun: list[tuple[Lane, int]] = []
        self.ends: list[asyncio.Future[None]] = []

    async def settle(self, lane: Lane, places: int) -> None:
        self.begun.append((lane, places))
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]

    async def begin(self, count: int) -> None:
        async with asyncio.timeout(BOUND_S):
            while len(self.begun) < count:
                await asyncio.sleep(0)


def test_those_who_ask_while_a_look_is_under_way_share_the_next_one() -> None:
    async def story() -> None:
        looks = Looks()
        turns = LaneTurns(cast(Lanes, looks))
        first = asyncio.create_task(turns.settle(LANE, 1))
        await looks.begin(1)
        later = [asyncio.create_task(turns.settle(LANE, places)) for places in (2, 7, 3)]
        other = asyncio.create_task(turns.settle(OTHER, 1))
        await looks.begin(2)
        assert looks.begun == [(LANE, 1), (OTHER, 1)]
        looks.ends[0].set_result(None)
        await first
        await looks.begin(3)
        assert looks.begun[2] == (LANE, 7)
        assert not any(task.done() for task in later)
        looks.ends[2].set_result(None)
        looks.ends[1].set_result(None)
        await asyncio.gather(*later, other)
        assert len(looks.begun) == 3

    asyncio.run(story())


def test_a_look_that_fails_fails_those_who_asked_for_it_and_not_the_next_ones() -> None:
    async def story() -> None:
        looks = Looks()
        turns = LaneTurns(cast(Lanes, looks))
        first = asyncio.create_task(turns.settle(LANE, 1))
        await looks.begin(1)
        second = asyncio.create_task(turns.settle(LANE, 1))
        looks.ends[0].set_exception(ConnectionError("gone"))
        with pytest.raises(ConnectionError):
            await first
        await looks.begin(2)
        looks.ends[1].set_result(None)
        await second
        third = asyncio.create_task(turns.settle(LANE, 1))
        await looks.begin(3)
        looks.ends[2].set_result(None)
        await third

    asyncio.run(story())
