"""What looks for schedules that did not fire finds each, and reads no others over and over.

Method: a real server. A schedule that was lost is stored without the headers that make it fire.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.core.effects import SetTimer
from treadle.engine.overdue import BLOCK, OVERDUE_MS, WHOLE_MS, Overdue
from treadle.engine.timers import Timers
from treadle.sdk.bus.jetstream import ApiError, JetStream, Refused, Stored
from treadle.sdk.messages import TimerFired

NOW_MS = round(time.time() * 1000)
YEAR_MS = 365 * 86_400_000
MANY = 2 * BLOCK + 10


class Counting(JetStream):
    """Counts what is read; refuses writes while the store is said to be full."""

    messages = 0
    is_full = False

    async def read(  # type: ignore[override]
        self, stream: str, filter: str, *, start: int = 1
    ) -> AsyncIterator[Stored]:
        async for stored in super().read(stream, filter, start=start):
            self.messages += 1
            yield stored

    async def attempt(self, *arguments: object, **options: object) -> int | Refused:
        if self.is_full:
            raise ApiError(503, 10077, "maximum bytes exceeded")
        return await super().attempt(*arguments, **options)  # type: ignore[arg-type]

    def since(self) -> int:
        """Return how many messages were read since the last call."""
        found, self.messages = self.messages, 0
        return found


async def sleeping(stand: Stand, name: str, count: int) -> None:
    """Have so many runs sleep for a year or two."""
    timers = Timers(stand.js, stand.subjects)
    due_ms = NOW_MS + YEAR_MS
    await asyncio.gather(
        *(
            timers.set(f"{name}{n}", SetTimer("s-nap", due_ms + n, _fired(due_ms + n)))
            for n in range(count)
        )
    )


def _fired(due_ms: int) -> TimerFired:
    return TimerFired(kind="wake", step="nap", type="t", due_ms=due_ms)


async def lost(stand: Stand, run: str, due_ms: int) -> None:
    """Store a schedule that never fires."""
    body = msgspec.json.encode(_fired(due_ms))
    await stand.js.store(stand.subjects.timer(run, "s-nap"), body)


async def fired(stand: Stand, run: str) -> Stored | None:
    s = stand.subjects
    return await stand.js.last(s.timers_stream, s.fired(run, "s-nap"))


async def scene(stand: Stand) -> tuple[Counting, Overdue]:
    await sleeping(stand, "early", MANY)
    js = Counting(stand.js.connection)
    return js, Overdue(js, stand.subjects)


@pytest.mark.slow
def test_a_sweep_reads_what_is_new_and_never_again_what_sleeps(play: Play) -> None:
    async def story(stand: Stand) -> None:
        js, overdue = await scene(stand)
        assert await overdue.sweep(NOW_MS) == 0
        assert js.since() == MANY
        for ms in (1, 30_000, WHOLE_MS - 1):
            assert await overdue.sweep(NOW_MS + ms) == 0
            assert js.since() == 0
        await sleeping(stand, "late", 3)
        await sleeping(stand, "early", 2)
        assert await overdue.sweep(NOW_MS + WHOLE_MS - 1) == 0
        assert js.since() == 5, "three new ones, and two that were replaced"
        assert await overdue.sweep(NOW_MS + WHOLE_MS) == 0
        assert js.since() == MANY + 3, "from time to time it trusts nothing that it knows"

    play(story)


def test_one_that_did_not_fire_is_set_again_once_among_any_number_that_sleep(play: Play) -> None:
    async def story(stand: Stand) -> None:
        js, overdue = await scene(stand)
        await lost(stand, "lost", NOW_MS - 1_000)
        await lost(stand, "later", NOW_MS + 60_000)
        await sleeping(stand, "late", BLOCK)
        assert await overdue.sweep(NOW_MS) == 0
        js.since()
        due_ms = NOW_MS - 1_000 + OVERDUE_MS
        assert await overdue.sweep(due_ms - 1) == 0
        assert js.since() == 0
        assert await overdue.sweep(due_ms) == 1
        assert js.since() <= 2 * BLOCK
        found = await stand.until(
            "it fires", lambda: fired(stand, "lost"), lambda it: it is not None
        )
        assert found is not None
        assert msgspec.json.decode(found.data, type=TimerFired).due_ms == NOW_MS - 1_000
        assert await overdue.sweep(due_ms + 1) == 0
        assert await fired(stand, "later") is None
        assert await overdue.sweep(NOW_MS + 60_000 + OVERDUE_MS) == 1

    play(story)


def test_one_that_was_cleared_or_replaced_meanwhile_does_not_come_back(play: Play) -> None:
    async def story(stand: Stand) -> None:
        _, overdue = await scene(stand)
        for run in ("cleared", "replaced"):
            await lost(stand, run, NOW_MS)
        assert await overdue.sweep(NOW_MS) == 0
        timers = Timers(stand.js, stand.subjects)
        await timers.clear("cleared")
        due_ms = NOW_MS + YEAR_MS
        await timers.set("replaced", SetTimer("s-nap", due_ms, _fired(due_ms)))
        assert await overdue.sweep(NOW_MS + OVERDUE_MS) == 0
        assert [await fired(stand, run) for run in ("cleared", "replaced")] == [None, None]

    play(story)


def test_what_cannot_be_set_while_the_store_is_full_is_set_by_a_later_sweep(play: Play) -> None:
    async def story(stand: Stand) -> None:
        js, overdue = await scene(stand)
        await lost(stand, "lost", NOW_MS)
        js.is_full = True
        for ms in (0, 30_000):
            try:
                await overdue.sweep(NOW_MS + OVERDUE_MS + ms)
            except ApiError:
                continue
            raise AssertionError("nobody is told")
        js.is_full = False
        assert await overdue.sweep(NOW_MS + OVERDUE_MS + 60_000) == 1

    play(story)
