"""Schedules that are due and did not fire: set again, so that they do.

A server whose store is full when a schedule is due cannot store what it fires; it keeps the
schedule, and does not try again before it restarts. Every engine sweeps; setting a schedule
again is a compare-and-set, so that none comes back that was replaced or cleared meanwhile.
"""

from __future__ import annotations

import logging
import time

import msgspec

from treadle.engine.recurring import sweep_every
from treadle.engine.timers import schedule
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects

SWEEP_S = 30.0
OVERDUE_MS = 5_000
"""Schedules fire up to 250 ms late, and a server that restarts fires them a little later; the
rest is for clocks that differ."""

_log = logging.getLogger("treadle.engine")


class _Due(msgspec.Struct, frozen=True):
    """What timers of runs and of triggers have in common."""

    due_ms: int = 0


_decoder = msgspec.json.Decoder(_Due)


class Overdue:
    """Sets overdue schedules of a namespace again."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects

    async def run(self) -> None:
        """Sweep about twice a minute, until cancelled."""
        await sweep_every(SWEEP_S, self._sweep_now, "engine.overdue-sweep-failed %r")

    async def _sweep_now(self) -> None:
        if count := await self.sweep(round(time.time() * 1000)):
            _log.warning("engine.timers-set-again %d", count, extra={"count": count})

    async def sweep(self, now_ms: int) -> int:
        """Set every schedule again that should have fired before ``now_ms``; return how many."""
        count = 0
        timers = self._js.read(self._subjects.timers_stream, self._subjects.all_timers)
        async for stored in timers:
            try:
                due_ms = read(_decoder, stored).due_ms
                target = self._subjects.fired_of_timer(stored.subject)
            except (StoredUnreadable, ValueError) as exc:
                _log.warning("engine.timer-unreadable %s", exc)
                continue
            if not due_ms or due_ms > now_ms - OVERDUE_MS:
                continue
            answer = await self._js.attempt(
                stored.subject,
                stored.data,
                expected=stored.sequence,
                headers=schedule(due_ms, target),
            )
            count += isinstance(answer, int)
        return count
