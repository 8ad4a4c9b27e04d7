"""Rate limits on JetStream: one number for each, changed by compare-and-set.

A task that comes too early is given a time, and the number moves on: it asks once and never polls.
A reservation that is lost with its engine leaves a gap, and never one too many. The time is the
server's: that of one engine's clock, once it jumped, would hold up those of all others.
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.engine.core.rates import counted_from, reserve
from treadle.engine.server_clock import ServerClock
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream, Refused, Stored
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import RateClaim, RateRecord
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects

TRIES_MAX = 200
CLOCK_TOLERANCE_US = 100_000
"""A record that is younger than now by more was stored before the server's clock was set back."""
_RETRY_S = 0.005

_decoder = msgspec.json.Decoder(RateRecord)


class Rates:
    """The rate limits of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._clock = ServerClock(js, subjects.limits_stream)
        self._locks: dict[str, asyncio.Lock] = {}

    async def now_ms(self) -> int:
        """Return the time that rates go by, in milliseconds since the epoch."""
        return await self._clock.now_us() // 1000

    async def due_ms(self, claims: tuple[RateClaim, ...], count: int) -> int:
        """Take places under each of the rates; return when the last of them lets them begin.

        ``count`` is how many begin together. The time is in milliseconds since the epoch; 0 is at
        once, whatever the clock says by the time that the answer is there.
        """
        dues = await asyncio.gather(*(self._reserve(claim, count) for claim in claims))
        return max(dues, default=0)

    async def _reserve(self, claim: RateClaim, count: int) -> int:
        lock = self._locks.setdefault(claim.key, asyncio.Lock())
        # This engine's own need not refuse each other.
        async with lock:
            due_us = await self._reserved(claim, count)
        if not lock.locked():
            self._locks.pop(claim.key, None)
        return -(-due_us // 1000)

    async def _reserved(self, claim: RateClaim, count: int) -> int:
        s = self._subjects
        subject = s.rate(claim.key)
        for _ in range(TRIES_MAX):
            stored = await self._js.last(s.limits_stream, subject)
            before, now_us = await self._standing(stored)
            next_us, due_us = reserve(before, now_us, claim.interval_us, claim.burst, count)
            record = RateRecord(
                label=claim.label,
                next_us=next_us,
                interval_us=claim.interval_us,
                burst=claim.burst,
            )
            expected = stored.sequence if stored else 0
            try:
                answer = await self._js.attempt(
                    subject, msgspec.json.encode(record), expected=expected
                )
            except Unknown:
                await asyncio.sleep(_RETRY_S)
                continue
            if not isinstance(answer, Refused):
                return due_us if due_us > now_us else 0
            if answer.transient:
                await asyncio.sleep(_RETRY_S)
        raise Unknown(f"the record of rate {claim.label!r} was refused {TRIES_MAX} times")

    async def _standing(self, stored: Stored | None) -> tuple[int, int]:
        """Return the theoretical time of the next, and the time; microseconds."""
        now_us = await self._clock.now_us()
        if stored is None:
            return 0, now_us
        if stored.time_us > now_us + CLOCK_TOLERANCE_US:
            now_us = await self._clock.ask()
            return counted_from(_number(stored), stored.time_us, now_us), now_us
        return _number(stored), max(now_us, stored.time_us)


def _number(stored: Stored) -> int:
    try:
        return read(_decoder, stored).next_us
    except StoredUnreadable:
        return 0  # What was garbled is written anew: a burst at most.
