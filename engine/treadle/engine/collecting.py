"""Collected starts become runs: look at a key, and do what is next.

    its starts form a window that is not due ──> its timer is set
    that is due, or closed ──> the window is decided: its record says which starts it has
    a window is decided    ──> its run is requested ──> the record says so ──> the starts go

Settling is idempotent and belongs to nobody. The record is changed by compare-and-set, so that one
engine decides a window, and whoever finds a decided one does the rest: the run, its id and its
input follow from what is stored. The delivered start, or the fired timer, comes again until that
is done.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import NamedTuple

import msgspec

from treadle.engine.collect_log import CollectLog, Found, Kept
from treadle.engine.core.collecting import decided, requested
from treadle.engine.requesting import Requests
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.collected import (
    WINDOW_COUNT,
    WINDOW_FIRST,
    WINDOW_KEY,
    WINDOW_LAST,
    input_of,
    run_of,
)
from treadle.sdk.collecting import Collect, Debounce
from treadle.sdk.log_fields import spaced
from treadle.sdk.singletons import placed
from treadle.sdk.subjects_of_starts import StartsOf
from treadle.sdk.windows import Window, due_ms, extended, is_due

TURNS_MAX = 100
"""Windows of one key that are driven at a time; for what is left it comes again."""
KEYS_MAX = 10_000
"""Keys of which an engine knows how far it has read; of the others it reads again."""
SKEW_MS = 2_000
"""How far the clocks of the servers may be apart that store starts and fire timers."""

_log = logging.getLogger("treadle.engine")


class _Read(NamedTuple):
    """How far the starts behind a closed window were read, and the window that they form."""

    closed: int
    read_to: int
    window: Window | None = None


class Collecting:
    """The collected starts of a namespace."""

    def __init__(self, log: CollectLog, requests: Requests) -> None:
        self._log = log
        self._requests = requests
        self._reads: OrderedDict[StartsOf, _Read] = OrderedDict()
        self._timers: OrderedDict[StartsOf, int] = OrderedDict()

    async def settle(self, starts: StartsOf, seen: int, at_ms: int) -> bool:
        """Do what is next for a key; False if there is more to do.

        ``seen`` is the newest start that was delivered, ``at_ms`` when it was stored. 0: nobody
        was told of one, so the server is asked for both. Raise ``StoredUnreadable`` if the record
        cannot be read, ``Unknown`` if a start cannot be read yet.
        """
        if not at_ms:
            self._timers.pop(starts, None)  # It has fired, or nobody knows whether it is set.
            seen = await self._log.newest(starts)
        for _ in range(TURNS_MAX):
            kept = await self._log.kept(starts)
            failpoints.reach("engine.collect-looked")
            if kept.record.run:
                await self._drive(starts, kept)
                continue
            read = await self._read(starts, kept.record.closed)
            window = read.window
            if read.read_to < seen and (window is None or not window.is_closed):
                raise Unknown(f"start {seen} is stored and cannot be read yet")
            if window is None:
                if not at_ms and seen:
                    # Whoever has closed the last window may have died before it let them go.
                    await self._log.drop(starts, kept.record.closed, remembered_s=0)
                return True
            rule = await self._rule(starts, window)
            if not is_due(rule, window, at_ms or await self._log.now_ms()):
                await self._set_timer(starts, rule, window)
                failpoints.reach("engine.collect-timer-set")
                return True
            if await self._log.start(starts, window.first) is None:
                # It is in a run, of which the record was deleted since this engine read it.
                del self._reads[starts]
                continue
            run = run_of(starts.workflow, starts.digest, window.first, window.first_ms)
            await self._log.put(starts, decided(kept.record, window, run), kept.revision)
            failpoints.reach("engine.collect-decided")
        return False

    # ---------------------------------------------------------------- windows

    async def _read(self, starts: StartsOf, closed: int) -> _Read:
        """Read on behind what is known, up to the end of the next window."""
        known = self._reads.get(starts)
        read = known if known is not None and known.closed == closed else _Read(closed, closed)
        window, read_to = read.window, read.read_to
        if window is None or not window.is_closed:
            rule = await self._rule(starts, window) if window else None
            async for sequence, found in self._log.starts(starts, read_to):
                read_to = sequence
                if found is None:
                    continue
                if rule is None:
                    rule = await self._rule_of(starts, found.member.version)
                window = extended(rule, window, found.member)
                if window.is_closed:
                    break
        self._reads[starts] = read = _Read(closed, read_to, window)
        self._reads.move_to_end(starts)
        if len(self._reads) > KEYS_MAX:
            self._reads.popitem(last=False)
        return read

    async def _rule(self, starts: StartsOf, window: Window) -> Collect:
        return await self._rule_of(starts, window.version)

    async def _rule_of(self, starts: StartsOf, version: str) -> Collect:
        rule = (await self._log.definition(starts.workflow, version)).collect
        assert rule is not None, "what does not collect is no start"
        return rule

    # ---------------------------------------------------------------- their runs

    async def _drive(self, starts: StartsOf, kept: Kept) -> None:
        """Request the run of the window that is decided, and let its starts go."""
        record = kept.record
        if not await self._requests.is_known(record.run):
            members = await self._members(starts, kept)
            if members is None:
                return
            if members:
                await self._request(starts, kept, members)
        failpoints.reach("engine.collect-run-requested")
        await self._log.put(starts, requested(record), kept.revision)
        failpoints.reach("engine.collect-closed")
        await self._log.drop(starts, record.last, remembered_s=0)
        failpoints.reach("engine.collect-dropped")

    async def _members(self, starts: StartsOf, kept: Kept) -> list[Found] | None:
        """Return the starts whose inputs the run is made of; None if it was requested meanwhile."""
        record = kept.record
        rule = await self._rule_of(starts, record.version)
        if isinstance(rule, Debounce):
            newest = await self._log.start(starts, record.last)
            found, wanted = [newest] if newest else [], 1
        else:
            behind = self._log.starts(starts, record.closed, record.last)
            found, wanted = [each async for _, each in behind if each is not None], record.count
        if len(found) == wanted:
            return found
        if (await self._log.kept(starts)).revision != kept.revision:
            return None
        found = await self._log.starts_of_leader(starts, record.closed, record.last)
        if len(found) < record.count:
            extra: dict[str, object] = {
                "workflow": starts.workflow,
                "run": record.run,
                "starts": record.count,
                "left": len(found),
            }
            _log.error("engine.collected-gone %s", spaced(extra), extra=extra)
        return found

    async def _request(self, starts: StartsOf, kept: Kept, members: list[Found]) -> None:
        record, newest = kept.record, members[-1].start
        definition = await self._log.definition(starts.workflow, record.version)
        raw = input_of(definition, [bytes(each.start.input) for each in members])
        metadata = {
            **newest.metadata,
            **({WINDOW_KEY: newest.key} if newest.key else {}),
            WINDOW_FIRST: record.first,
            WINDOW_LAST: record.last,
            WINDOW_COUNT: record.count,
        }
        place = placed(definition, raw, None, None)
        await self._requests.store_at(
            place, starts.workflow, record.run, record.version, msgspec.Raw(raw), metadata
        )

    # ---------------------------------------------------------------- their timers

    async def _set_timer(self, starts: StartsOf, rule: Collect, window: Window) -> None:
        """Let the key be looked at when its window is due, or earlier."""
        wanted_ms = due_ms(rule, window) + 1
        known_ms = self._timers.get(starts, 0)
        # One that was to fire after the newest start was stored finds it when it does.
        if window.last_ms + SKEW_MS < known_ms <= wanted_ms:
            return
        known_ms = await self._log.timer_ms(starts)
        if not 0 < known_ms <= wanted_ms:
            known_ms = wanted_ms
            await self._log.set_timer(starts, wanted_ms)
        self._timers[starts] = known_ms
        self._timers.move_to_end(starts)
        if len(self._timers) > KEYS_MAX:
            self._timers.popitem(last=False)
