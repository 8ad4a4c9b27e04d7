"""The answer of an index where none is: every run's document is read.

Complete while documents are rewritten: a rewritten one moves behind what is read, never before
it, and what was read of it before is replaced.
"""

from __future__ import annotations

import bisect
import heapq
from collections import Counter

from treadle.sdk.client.store import Store
from treadle.sdk.listing.facts import Facts, facts_of
from treadle.sdk.listing.filters import matches
from treadle.sdk.listing.wire import Position, RunFound, RunsAsked, RunsFound
from treadle.sdk.run import TERMINAL


async def scan(store: Store, asked: RunsAsked) -> tuple[RunsFound, int]:
    """Return the answer, and how many documents were read for it."""
    js, s = store.js, store.subjects
    found: dict[str, tuple[int, str]] = {}
    lanes: dict[str, Facts] = {}
    known: set[str] = set()
    wanted_known = set(asked.known)
    position = count = 0
    async for stored in js.read(s.runs_stream, s.all_runs):
        position, count = stored.sequence, count + 1
        key = s.parse_run_document(stored.subject)
        found.pop(key, None)
        lanes.pop(key, None)
        if not stored.data:
            continue
        if key in wanted_known:
            known.add(key)
        facts = facts_of(key, stored)
        if matches(asked.filter, facts):
            found[key] = (facts.requested_ms, facts.status)
        if facts.lane and facts.status not in TERMINAL:
            lanes[key] = facts
    below = asked.below or Position(2**63, "")
    behind = [(at_ms, run) for run, (at_ms, _) in found.items() if (at_ms, run) < below]
    newest = heapq.nlargest(asked.limit, behind)
    order = _Lanes(lanes)
    answer = RunsFound(
        position=position,
        runs=tuple(RunFound(run, at_ms, *order.ahead(run)) for at_ms, run in newest),
        is_more=len(behind) > len(newest),
        known=tuple(known),
        counts=Counter(status for _, status in found.values()) if asked.counts else {},
    )
    return answer, count


class _Lanes:
    """The runs that are in lanes and have not ended."""

    def __init__(self, runs: dict[str, Facts]) -> None:
        self._runs = runs
        self._queued: dict[str, list[int]] = {}
        self._active: dict[str, list[tuple[int, str]]] = {}
        for run, facts in runs.items():
            if facts.status == "queued":
                self._queued.setdefault(facts.lane, []).append(facts.place)
            elif facts.status != "scheduled":
                self._active.setdefault(facts.lane, []).append((facts.place, run))
        for requests in self._queued.values():
            requests.sort()

    def ahead(self, run: str) -> tuple[int, str]:
        """Return how many come before a queued run, and the first of them that is active."""
        facts = self._runs.get(run)
        if facts is None or facts.status != "queued":
            return -1, ""
        active = [each for each in self._active.get(facts.lane, ()) if each[0] < facts.place]
        before = bisect.bisect_left(self._queued[facts.lane], facts.place)
        return before + len(active), min(active, default=(0, ""))[1]
