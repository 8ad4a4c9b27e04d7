"""Where a queued run stands in its lane: how many are before it, and which one is active.

For people, not for decisions: by the time one reads it, it may have moved.
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.lanes import Ahead, LaneRecord, lane_key
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read

AHEAD_MAX = 1_000
"""Requests looked at before a queued run; of a longer queue only so much is told."""
_PARALLEL = 64

_record = msgspec.json.Decoder(LaneRecord)


async def ahead_of(store: Store, run: RunDocument) -> Ahead:
    """Return what stands before a queued run."""
    requests = await _requests_before(store, run)
    ahead = Ahead(is_more=len(requests) > AHEAD_MAX, places=run.places)
    count, holders = 0, list[str]()
    for start in range(0, min(len(requests), AHEAD_MAX), _PARALLEL):
        batch = requests[start : start + _PARALLEL]
        found = await asyncio.gather(*(_glance(store, each) for _, each in batch))
        for (sequence, name), document in zip(batch, found, strict=True):
            if is_ahead(document, sequence):
                count += 1
                if document is not None and document.status != "queued":
                    holders.append(name)
    several = tuple(holders) if len(holders) > 1 else ()
    first = holders[0] if holders else ""
    return msgspec.structs.replace(ahead, count=count, holder=first, several=several)


def is_ahead(document: RunDocument | None, sequence: int) -> bool:
    """Whether an earlier request still has to end, given its run's document."""
    if document is None:
        return True
    return not document.is_terminal and document.place == sequence


async def _glance(store: Store, run: str) -> RunDocument | None:
    try:
        return await store.document(run)
    except StoredUnreadable:
        return None  # It holds its lane until it is mended or ended.


async def _requests_before(store: Store, run: RunDocument) -> list[tuple[int, str]]:
    """Return sequence and run of the requests that may be before it, at most one too many."""
    s = store.subjects
    key = lane_key(run.lane)
    stored = await store.js.last(s.lanes_stream, s.lane(key, run.domain))
    record = read(_record, stored) if stored and stored.data else LaneRecord(lane=run.lane)
    lane = s.requests_of_lane(key, run.domain)
    found = [(each.sequence, each.run) for each in record.under_way if each.sequence < run.place]
    after = record.after
    async for request in store.js.read(s.events_stream, lane, start=after + 1):
        if request.sequence >= run.place or len(found) > AHEAD_MAX:
            break
        found.append((request.sequence, s.parse_event(request.subject).run))
    return found
