"""What is delivered of collected starts and their timers: a key is settled once for all of it.

A delivery is acked when its key is settled, and handed back in any other case. What nobody is told
of any more, because a timer was lost, is found by a sweep.
"""

from __future__ import annotations

import asyncio
import logging
from typing import NamedTuple

from treadle.engine.collect_log import CollectLog
from treadle.engine.collecting import Collecting
from treadle.engine.recurring import later_ms, sweep_every
from treadle.engine.underway import UnderWay
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.log_fields import spaced
from treadle.sdk.subjects import Subjects
from treadle.sdk.subjects_of_starts import StartsOf

AT_ONCE_MAX = 64
"""Keys settled side by side: enough to hide the round trips, few enough to leave room for runs."""
FAILED_LATER_MS = 50
"""First wait before a key is looked at again that could not be settled; it doubles."""
LATER_MS_MAX = 30_000
SWEEP_S = 120.0
SWEPT_MAX = 5_000
"""Starts, and records, that one sweep looks at; the next one goes on behind them."""
REMEMBERED_S = 7 * 24 * 3600.0
"""How long an id is known after its start, as that of a published event."""
RECORD_KEPT_MS = 24 * 3600 * 1_000
"""How long a key's record is kept when it has no starts: longer than any engine stands still."""

_log = logging.getLogger("treadle.engine")


class _Told(NamedTuple):
    """A delivery; a firing if it is no start. None is a sweep, that tells nobody."""

    delivery: Delivery | None = None
    source: Puller | None = None
    is_start: bool = False


class Collector:
    """Takes starts and fired timers, and settles their keys."""

    def __init__(self, subjects: Subjects, log: CollectLog, collecting: Collecting) -> None:
        self._subjects = subjects
        self._log = log
        self._collecting = collecting
        self._queues: dict[StartsOf, list[_Told]] = {}
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)
        self._under_way = UnderWay()
        self._swept = 0
        self._swept_records = 0

    def take_start(self, delivery: Delivery, source: Puller) -> None:
        """Take a delivered start."""
        starts = self._subjects.parse_starts(delivery.subject)
        self._take(starts, _Told(delivery, source, is_start=True))

    def take_firing(self, delivery: Delivery, source: Puller) -> None:
        """Take a timer that has fired."""
        self._take(self._subjects.parse_starts(delivery.subject), _Told(delivery, source))

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until everything taken is handled, at most so long."""
        await self._under_way.wait_idle(timeout_s)

    def _take(self, starts: StartsOf, told: _Told) -> None:
        """Settle a key; what comes of one that is being settled is looked at after it."""
        waiting = self._queues.get(starts)
        if waiting is not None:
            waiting.append(told)
            return
        self._queues[starts] = [told]
        self._under_way.start(self._handle(starts))

    async def _handle(self, starts: StartsOf) -> None:
        try:
            async with self._gate:
                while batch := self._queues[starts]:
                    self._queues[starts] = []
                    is_done = await self._is_done(starts, batch)
                    for told in batch:
                        await self._answer(starts, told, is_done=is_done)
        finally:
            del self._queues[starts]

    async def _is_done(self, starts: StartsOf, batch: list[_Told]) -> bool:
        deliveries = [told.delivery for told in batch if told.delivery is not None]
        extra: dict[str, object] = {
            "workflow": starts.workflow,
            "key": starts.digest,
            "delivery": max((each.delivered for each in deliveries), default=0),
        }
        seen = at_ms = 0
        if all(told.is_start for told in batch):
            seen = max(each.sequence for each in deliveries)
            at_ms = max(each.time_ms for each in deliveries)
        try:
            return await self._collecting.settle(starts, seen, at_ms)
        except StoredUnreadable as exc:
            extra["error"] = str(exc)
            _log.error("engine.window-unreadable %s", spaced(extra), extra=extra)
        except Exception as exc:  # noqa: BLE001 — one key must not stop the others
            extra["error"] = repr(exc)
            _log.warning("engine.collect-delayed %s", spaced(extra), extra=extra)
        return False

    async def _answer(self, starts: StartsOf, told: _Told, *, is_done: bool) -> None:
        if told.delivery is None or told.source is None:
            return
        if not is_done:
            told.delivery.nak(later_ms(told.delivery.delivered, FAILED_LATER_MS, LATER_MS_MAX))
        else:
            if not told.is_start:
                await self._drop_firing(starts, told.delivery)
            told.delivery.ack()
        told.source.finished()

    async def _drop_firing(self, starts: StartsOf, delivery: Delivery) -> None:
        try:
            await self._log.drop_firing(starts, delivery.sequence)
        except Exception as exc:  # noqa: BLE001 — it is a hint that was used; the next one replaces it
            _log.warning("engine.firing-not-dropped %r", exc)

    # ---------------------------------------------------------------- what only time can tell

    async def run(self) -> None:
        """Sweep every few minutes, until cancelled."""
        await sweep_every(SWEEP_S, self.sweep, "engine.collect-sweep-failed %r")

    async def sweep(self, remembered_s: float = REMEMBERED_S) -> None:
        """Settle keys that have starts, and delete what is old: ids, and records of no starts."""
        found, self._swept = await self._log.keys(self._swept + 1, SWEPT_MAX)
        for starts in sorted(found):
            self._take(starts, _Told())
            closed = (await self._log.kept(starts)).record.closed
            await self._log.drop(starts, closed, remembered_s=remembered_s)
        before_ms = await self._log.now_ms() - RECORD_KEPT_MS
        count, start, self._swept_records = 0, self._swept_records + 1, 0
        async for starts, record, revision, time_ms in self._log.records(start):
            if record is not None and record.run:
                self._take(starts, _Told())
            elif record is not None and time_ms < before_ms and not await self._log.newest(starts):
                await self._log.forget(starts, revision)
            count += 1
            if count == SWEPT_MAX:
                self._swept_records = revision
                break
