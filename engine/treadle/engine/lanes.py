"""Lanes: who is first is looked up, the first ones are told, and nothing else is kept right.

    a queued document, an ended document with a lane ──> settle: who has a place now is told
    a sweep ──────────────────────────────────────────> settle, and what only time can tell

Settling is idempotent and belongs to no run: whoever does it, whenever, does what is due in the
lane. An engine that dies on the way leaves an un-acked event, and the sweep.
"""

from __future__ import annotations

import logging
import time

from treadle.engine.core.apply import DEFINITION_GONE_MS
from treadle.engine.core.lanes import Entry, Glimpse, granted, noted, places_of, standing
from treadle.engine.lane_log import Kept, Lane, LaneLog
from treadle.engine.recurring import sweep_every
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.identifier import is_id
from treadle.sdk.lanes import LaneRecord, Place
from treadle.sdk.log_fields import spaced

NOBODY = Place(0, "")
"""Not among the first, as far as can be seen, and behind nobody who can be named."""
NOTED_LEAST = 8
"""Starts that find a place note it for the next ones when so many are not noted yet."""
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
    """Finds out who has a place in a lane, and tells it."""

    def __init__(self, log: LaneLog) -> None:
        self._log = log
        self._swept = 0

    async def ahead(self, lane: Lane, place: Place, places: int = 1) -> Place | None:
        """Return None if a request may begin, for fewer than so many before it are not over.

        Otherwise the first one before it that is not. None stays true: what is over is for ever.
        ``NOBODY`` if what answers does not know this request yet, or its run is over itself; and
        where there are several places, if there may be none: a look will tell.
        """
        kept = await self._log.record(lane)
        if places > 1:
            return None if await self._has_room(lane, kept, place, places) else NOBODY
        entries, _ = await self._look(lane, kept.record, places)
        if not entries or entries[0].place.sequence > place.sequence:
            return NOBODY
        first = entries[0].place
        return None if first == place else first

    async def _has_room(self, lane: Lane, kept: Kept, place: Place, places: int) -> bool:
        """Return whether a request has a place even if all before it that are noted are not over.

        No document is read for it, so that many starts at once do not look at each other.
        """
        record = kept.record
        found = list(record.under_way)
        after, noted_up_to = record.after, record.after
        while after < place.sequence and len(found) <= places:
            other = await self._log.next(lane, after)
            if other is None:
                return False
            found.append(other)
            after = other.sequence
        if place not in found[:places]:
            return False
        if after > noted_up_to and len(found) - len(record.under_way) >= NOTED_LEAST:
            new = LaneRecord(lane=lane.name, after=after, under_way=tuple(found), waiting=True)
            await self._log.put(lane, new, kept.revision)  # A hint: somebody else may be faster.
        return True

    async def enter(self, lane: Lane, run: str, request: int) -> None:
        """Give a scheduled run its place in the lane; twice is once."""
        await self._log.enter(lane, run, request)
        failpoints.reach("engine.lane-entered")

    async def supersede(self, lane: Lane, place: Place) -> None:
        """Tell each run before this one in the lane that is not over that this takes its place."""
        kept = await self._log.record(lane)
        after = kept.record.after
        noted_before = list(kept.record.under_way)
        while True:
            other = noted_before.pop(0) if noted_before else await self._log.next(lane, after)
            if other is None or other.sequence >= place.sequence:
                return
            if await self._entry(other) is not None:
                await self._log.supersede(lane, other, place.run)
                failpoints.reach("engine.lane-superseded")
            after = max(after, other.sequence)

    async def settle(self, lane: Lane, places: int = 1) -> None:
        """Tell those that may begin, of those that are queued; note how far the lane has come.

        ``places`` are those of the run for which it is done; what others have is looked up.
        """
        told: set[Place] = set()
        for _ in range(TRIES_MAX):
            kept = await self._log.record(lane)
            entries, over = await self._look(lane, kept.record, places)
            failpoints.reach("engine.lane-looked")
            for place in granted(entries):
                if place not in told:
                    await self._log.grant(lane, place)
                    told.add(place)
                    failpoints.reach("engine.lane-granted")
            record = noted(lane.name, entries, over, places_of(entries, places))
            if record == kept.record or await self._log.put(lane, record, kept.revision):
                failpoints.reach("engine.lane-noted")
                return
        raise Unknown(f"the record of lane {lane.name!r} was refused {TRIES_MAX} times")

    async def _look(self, lane: Lane, record: LaneRecord, places: int) -> tuple[list[Entry], int]:
        """Return the first requests that are not over, as many as have to be known, and the last
        one that is over."""
        known = record.under_way
        documents = await self._log.glimpses(known) if known else []
        found = map(_entry, known, documents)
        entries = [entry for entry in found if entry is not None]
        after = over = record.after
        while len(entries) < places_of(entries, places):
            place = await self._log.next(lane, after)
            if place is None:
                break
            entry = await self._entry(place)
            after = place.sequence
            if entry is None:
                over = after
            else:
                entries.append(entry)
        return entries, over

    async def _entry(self, place: Place) -> Entry | None:
        """Return what there is to know of a request; None if it is over."""
        # No run has such an id, so no engine takes such a request.
        return _entry(place, await self._log.document(place)) if is_id(place.run) else None

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
            entries, _ = await self._look(lane, kept.record, 1)
            for place, _, document in entries:
                if document is None:
                    await self._close(lane, place)
                else:
                    await self._wake_orphan(lane, place, document, now_ms)
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


def _entry(place: Place, document: Glimpse | None) -> Entry | None:
    at = standing(place, document)
    return None if at == "over" else Entry(place, at, document)


def _told(what: str, lane: Lane, place: Place) -> None:
    extra = {"lane": lane.name, "run": place.run, "request": place.sequence}
    _log.warning("%s %s", what, spaced(extra), extra=extra)
