"""The lanes of a namespace for people: who is active in each, and who waits behind.

Which lanes there are is read off their records, which those have in which somebody has waited, and
off the newest runs that have not ended. Who stands in one is looked up as engines do.

For people, not for decisions: by the time one reads it, it may have moved.
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.client.listing import list_runs
from treadle.sdk.client.queueing import AHEAD_MAX, glances, is_ahead, requests_in
from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.lanes import LaneRecord
from treadle.sdk.listing.filters import RunFilter
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read
from treadle.sdk.subjects import MAIN_DOMAIN

LANES_MAX = 1_000
"""Lanes that are looked at; of more, those that changed last."""
RUNS_MAX = 1_000
"""Runs that are asked for their lane: only one in which nobody has ever waited is found by them."""
WAITERS_TOLD = 3
"""Waiting runs that are told one by one."""
_AT_ONCE = 16
_LIVE = ("running", "parked", "paused", "queued")

_record = msgspec.json.Decoder(LaneRecord)


class LaneRun(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A run in a lane. Times are milliseconds since the epoch."""

    run: str
    workflow: str = ""
    """Empty while no engine has taken it."""
    status: str = "requested"
    since_ms: int = 0
    """Since when it is active, by its first step, or waits, by its request; 0 is not known."""


class LaneView(msgspec.Struct, frozen=True, kw_only=True):
    """A lane that somebody is in."""

    lane: str
    kind: str = "lane"
    """Tells it from a limit of steps, where both are listed."""
    places: int = 1
    """Runs that may be active at a time, as the newest of them has it."""
    holders: tuple[LaneRun, ...] = ()
    waiting: int = 0
    is_more: bool = False
    """More wait than were counted."""
    first: tuple[LaneRun, ...] = ()
    """Those of the waiting that come next."""


async def lanes_of(store: Store) -> list[LaneView]:
    """Return the lanes that somebody is in, those with the most waiting first."""
    lanes = await _lanes(store)
    gate = asyncio.Semaphore(_AT_ONCE)

    async def view(lane: str, domain: str) -> LaneView | None:
        async with gate:
            return await _view(store, lane, domain)

    found = await asyncio.gather(*(view(*each) for each in lanes))
    views = [each for each in found if each is not None]
    return sorted(views, key=lambda each: (-each.waiting, each.lane))


async def _lanes(store: Store) -> list[tuple[str, str]]:
    """Return name and domain of the lanes in which somebody may be."""
    s = store.subjects
    found: dict[tuple[str, str], None] = {}
    async for stored in store.js.read(s.lanes_stream, s.all_lanes):
        try:
            record = read(_record, stored) if stored.data else LaneRecord(lane="")
        except StoredUnreadable:
            continue  # It is a hint; the runs of the lane name it too.
        if record.lane:
            found[record.lane, s.parse_lane(stored.subject)[0]] = None
    live = await list_runs(store, RunFilter(statuses=_LIVE), RUNS_MAX, None)
    found.update(dict.fromkeys((view.lane, MAIN_DOMAIN) for view in live.runs if view.lane))
    return list(found)[-LANES_MAX:]


async def _view(store: Store, lane: str, domain: str) -> LaneView | None:
    requests = await requests_in(store, lane, domain)
    standing = requests[:AHEAD_MAX]
    documents = await glances(store, [run for _, run in standing])
    places, holders, waiting = 1, list[LaneRun](), list[LaneRun]()
    for (sequence, run), document in zip(standing, documents, strict=True):
        if not is_ahead(document, sequence):
            continue
        places = document.places if document else places
        is_active = document is not None and document.status != "queued"
        (holders if is_active else waiting).append(_run(run, document))
    if not holders and not waiting:
        return None
    return LaneView(
        lane=lane,
        places=places,
        holders=tuple(holders),
        waiting=len(waiting),
        is_more=len(requests) > AHEAD_MAX,
        first=tuple(waiting[:WAITERS_TOLD]),
    )


def _run(run: str, document: RunDocument | None) -> LaneRun:
    if document is None:
        return LaneRun(run=run)
    since_ms = document.starts_ms or document.requested_ms
    if document.status != "queued":
        begun = [each.started_ms for each in document.steps.values() if each.started_ms]
        since_ms = max(since_ms, min(begun, default=0))
    return LaneRun(run=run, workflow=document.workflow, status=document.status, since_ms=since_ms)
