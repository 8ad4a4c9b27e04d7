"""Lanes: who is first is looked up, the first one is told, and nothing else is kept right.

    a queued document, an ended document with a lane ──> settle: whoever is first now is told
    a sweep ──────────────────────────────────────────> settle, and what only time can tell

Settling is idempotent and belongs to no run: whoever does it, whenever, does what is due in the
lane. An engine that dies on the way leaves an un-acked event, and the sweep.
"""

from __future__ import annotations

import logging
import time

from treadle.engine.core.apply import DEFINITION_GONE_MS
from treadle.engine.core.lanes import Glimpse, Place, Standing, standing
from treadle.engine.lane_log import Kept, Lane, LaneLog
from treadle.engine.recurring import sweep_every
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.identifier import is_id
from treadle.sdk.lanes import LaneRecord
from treadle.sdk.log_fields import spaced

NOBODY = Place(0, "")
"""Not first, as far as can be seen, and behind nobody who can be named."""
TRIES_MAX = 8
"""More engines do not write one record at once; and a deposed leader, which gives an old one, is
not asked for ever."""
SWEEP_S = 10.0
"""How long a lane waits at most for what no event tells; a look costs three reads."""
LANES_SWEPT_MAX = 500
"""Waiting lanes that one sweep looks after; the next one goes on behind them."""
IDLE_MS = 3600 * 1000
"""A record that nobody has changed for so long goes, if no request of its lane is left."""
FORGOTTEN_MAX = 20
"""Idle records one sweep asks about: each may be kept for as long as its runs are."""

_log = logging.getLogger("treadle.engine")


class Lanes:
    """Finds out who is first in a lane, and tells it."""

    def __init__(self, log: LaneLog) -> None:
        self._log = log
        self._swept = 0

    async def ahead(self, lane: Lane, place: Place) -> Place | None:
        """Return the first request of the lane that is not over; None if it is this one.

        None stays true: then every earlier request is over. ``NOBODY`` if what answers does not
        know this request yet, or its run is over itself.
        """
        kept = await self._log.record(lane)
        first, _, _, _ = await self._first(lane, kept.record.after)
        if first is None or first.sequence > place.sequence:
            return NOBODY
        return None if first.sequence == place.sequence else first

    async def supersede(self, lane: Lane, place: Place) -> None:
        """Tell each run before this one in the lane that is not over that this takes its place."""
        kept = await self._log.record(lane)
        after = kept.record.after
        while (other := await self._log.next(lane, after)) is not None:
            if other.sequence >= place.sequence:
                return
            document = await self._log.document(other) if is_id(other.run) else None
            if is_id(other.run) and standing(other, document) != "over":
                await self._log.supersede(lane, other, place.run)
                failpoints.reach("engine.lane-superseded")
            after = other.sequence

    async def settle(self, lane: Lane) -> None:
        """Tell the first one in the lane, if it is queued, and note how far the lane has come."""
        told: Place | None = None
        for _ in range(TRIES_MAX):
            kept = await self._log.record(lane)
            first, at, _, after = await self._first(lane, kept.record.after)
            failpoints.reach("engine.lane-looked")
            if first is not None and at == "queued" and first != told:
                await self._log.grant(lane, first)
                told = first
                failpoints.reach("engine.lane-granted")
            record = LaneRecord(lane=lane.name, after=after, waiting=first is not None)
            if record == kept.record or await self._log.put(lane, record, kept.revision):
                failpoints.reach("engine.lane-noted")
                return
        raise Unknown(f"the record of lane {lane.name!r} was refused {TRIES_MAX} times")

    async def _first(
        self, lane: Lane, after: int
    ) -> tuple[Place | None, Standing, Glimpse | None, int]:
        """Return the first request that is not over, and the last one before it that is."""
        while (place := await self._log.next(lane, after)) is not None:
            # No run has such an id, so no engine takes such a request.
            document = await self._log.document(place) if is_id(place.run) else None
            at = standing(place, document) if is_id(place.run) else "over"
            if at != "over":
                return place, at, document, after
            after = place.sequence
        return None, "over", None, after

    # ---------------------------------------------------------------- what only time can tell

    async def run(self) -> None:
        """Sweep several times a minute, until cancelled."""
        await sweep_every(
            SWEEP_S, lambda: self.sweep(round(time.time() * 1000)), "engine.lane-sweep-failed %r"
        )

    async def sweep(self, now_ms: int) -> int:
        """Look after lanes in which somebody waits; return how many of them there were."""
        waiting = idle = 0
        start, self._swept = self._swept + 1, 0
        async for lane, kept in self._log.records(start):
            if kept.record.waiting:
                waiting += 1
                await self._look_after(lane, kept, now_ms)
            elif kept.time_ms < now_ms - IDLE_MS and idle < FORGOTTEN_MAX:
                idle += 1
                await self._forget(lane, kept)
            if waiting == LANES_SWEPT_MAX:
                self._swept = kept.revision
                break
        return waiting

    async def _look_after(self, lane: Lane, kept: Kept, now_ms: int) -> None:
        """Settle a lane, and end what holds it and cannot end by itself."""
        try:
            first, at, document, _ = await self._first(lane, kept.record.after)
            if first is not None and at == "coming":
                await self._close(lane, first)
            elif first is not None and document is not None:
                await self._wake_orphan(lane, first, document, now_ms)
            await self.settle(lane)
        except Exception as exc:  # noqa: BLE001 — one lane must not stop the sweep
            # The other lanes go on; this one is looked after again by the next sweep.
            extra = {"lane": lane.name, "error": repr(exc)}
            _log.warning("engine.lane-dispatch-failed %s", spaced(extra), extra=extra)

    async def _close(self, lane: Lane, first: Place) -> None:
        """End a request that was set aside: no engine will ever make a run of it."""
        if await self._log.is_set_aside(first) and await self._log.close(lane, first):
            _told("engine.lane-request-closed", lane, first)

    async def _wake_orphan(self, lane: Lane, first: Place, document: Glimpse, now_ms: int) -> None:
        """Give a run an event whose definition is gone, so that it fails: it may sleep for ever."""
        is_old = now_ms - document.requested_ms > DEFINITION_GONE_MS
        if is_old and not await self._log.is_registered(document):
            await self._log.grant(lane, first)
            _told("engine.lane-definition-gone", lane, first)

    async def _forget(self, lane: Lane, kept: Kept) -> None:
        """Delete the record of a lane without any request."""
        if await self._log.next(lane, 0) is None:
            await self._log.forget(lane, kept.revision)


def _told(what: str, lane: Lane, place: Place) -> None:
    extra = {"lane": lane.name, "run": place.run, "request": place.sequence}
    _log.warning("%s %s", what, spaced(extra), extra=extra)
