"""Schedules that are due and did not fire: set again, so that they do.

A server whose store is full when a schedule is due cannot store what it fires; it keeps the
schedule, and does not try again before it restarts. Every engine sweeps; setting a schedule
again is a compare-and-set, so that none comes back that was replaced or cleared meanwhile.

A sweep reads what was stored since the last one, and what may be due. Of the rest it knows only
when the soonest of each few hundred is due, so that runs which sleep for a year cost nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

import msgspec

from treadle.engine.recurring import sweep_every
from treadle.engine.timers import schedule
from treadle.sdk.bus.jetstream import JetStream, Stored
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects

SWEEP_S = 30.0
OVERDUE_MS = 5_000
"""Schedules fire up to 250 ms late, and a server that restarts fires them a little later; the
rest is for clocks that differ."""
BLOCK = 256
"""Schedules that are looked at together: what one read brings."""
WHOLE_MS = 3_600_000
"""How often everything is read all the same, so that nothing rests on memory for long: the stream
may have been restored from a backup."""

_log = logging.getLogger("treadle.engine")


class _Due(msgspec.Struct, frozen=True):
    """What timers of runs and of triggers have in common."""

    due_ms: int = 0


class Block(msgspec.Struct):
    """Schedules that are stored one behind the other, and when the soonest of them is due."""

    first: int
    last: int
    size: int = 0
    soonest_ms: int = 2**63

    def add(self, sequence: int, due_ms: int) -> None:
        """Count a schedule that is stored behind the others; 0 is never due."""
        self.last = sequence
        self.size += 1
        self.soonest_ms = min(self.soonest_ms, due_ms or self.soonest_ms)


_decoder = msgspec.json.Decoder(_Due)


class Overdue:
    """Sets overdue schedules of a namespace again."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._blocks: list[Block] = []
        self._read_to = 0
        self._whole_ms = 0

    async def run(self) -> None:
        """Sweep about twice a minute, until cancelled."""
        await sweep_every(SWEEP_S, self._sweep_now, "engine.overdue-sweep-failed %r")

    async def _sweep_now(self) -> None:
        if count := await self.sweep(round(time.time() * 1000)):
            _log.warning("engine.timers-set-again %d", count, extra={"count": count})

    async def sweep(self, now_ms: int) -> int:
        """Set every schedule again that should have fired before ``now_ms``; return how many.

        One that fails is made up for by the next one, which looks at the same.
        """
        if now_ms - self._whole_ms >= WHOLE_MS:
            self._blocks, self._read_to, self._whole_ms = [], 0, now_ms
        before_ms, count = now_ms - OVERDUE_MS, 0
        # What is set again is stored behind this one, and has fired when the next sweep looks.
        newest = await self._js.last(self._subjects.timers_stream, self._subjects.all_timers)
        read_to = max(self._read_to, newest.sequence if newest else 0)
        blocks: list[Block] = []
        for block in self._blocks:
            if block.soonest_ms > before_ms:
                blocks.append(block)
                continue
            left, again = await self._look(block.first, block.last, before_ms)
            blocks.extend(left)
            count += again
        if read_to > self._read_to:
            left, again = await self._look(self._read_to + 1, read_to, before_ms)
            blocks.extend(left)
            count += again
        self._blocks, self._read_to = joined(blocks), read_to
        return count

    async def _look(self, first: int, last: int, before_ms: int) -> tuple[list[Block], int]:
        """Read the schedules from one sequence to another, and set those again that are overdue.

        Return the others in blocks, and how many were set again.
        """
        blocks: list[Block] = []
        count = 0
        timers = self._js.read(self._subjects.timers_stream, self._subjects.all_timers, start=first)
        async for stored in timers:
            if stored.sequence > last:
                break
            due_ms, is_again = await self._set_again(stored, before_ms)
            if is_again:
                count += 1
                continue
            if not blocks or blocks[-1].size == BLOCK:
                blocks.append(Block(stored.sequence, stored.sequence))
            blocks[-1].add(stored.sequence, due_ms)
        return blocks, count

    async def _set_again(self, stored: Stored, before_ms: int) -> tuple[int, bool]:
        """Return when a schedule is due, 0 if nobody can tell, and whether it was set again."""
        try:
            due_ms = read(_decoder, stored).due_ms
            target = self._subjects.fired_of_timer(stored.subject)
        except (StoredUnreadable, ValueError) as exc:
            _log.warning("engine.timer-unreadable %s", exc)
            return 0, False
        if not due_ms or due_ms > before_ms:
            return due_ms, False
        answer = await self._js.attempt(
            stored.subject,
            stored.data,
            expected=stored.sequence,
            headers=schedule(due_ms, target),
        )
        return due_ms, isinstance(answer, int)


def joined(blocks: Iterable[Block]) -> list[Block]:
    """Return the blocks with neighbours put together that are no more than one."""
    found: list[Block] = []
    for block in blocks:
        if found and found[-1].size + block.size <= BLOCK:
            before = found[-1]
            soonest_ms = min(before.soonest_ms, block.soonest_ms)
            found[-1] = Block(before.first, block.last, before.size + block.size, soonest_ms)
        else:
            found.append(block)
    return found
