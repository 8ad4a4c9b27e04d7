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
    requests = await requests_in(store, run.lane, run.domain, run.place)
    ahead = Ahead(is_more=len(requests) > AHEAD_MAX, places=run.places)
    count, holders = 0, list[str]()
    requests = requests[:AHEAD_MAX]
    documents = await glances(store, [name for _, name in requests])
    for (sequence, name), document in zip(requests, documents, strict=True):
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


async def glances(store: Store, runs: list[str]) -> list[RunDocument | None]:
    """Return the documents of runs, as far as they can be read."""
    found: list[RunDocument | None] = []
    for start in range(0, len(runs), _PARALLEL):
        batch = runs[start : start + _PARALLEL]
        found += await asyncio.gather(*(_glance(store, each) for each in batch))
    return found


async def _glance(store: Store, run: str) -> RunDocument | None:
    try:
        return await store.document(run)
    except StoredUnreadable:
        return None  # It holds its lane until it is mended or ended.


async def requests_in(
    store: Store, lane: str, domain: str, before: int = 0
) -> list[tuple[int, str]]:
    """Return sequence and run of the requests of a lane that may not be over, one more than
    ``AHEAD_MAX`` at most; with ``before`` those before that sequence."""
    s = store.subjects
    key = lane_key(lane)
    stored = await store.js.last(s.lanes_stream, s.lane(key, domain))
    record = read(_record, stored) if stored and stored.data else LaneRecord(lane=lane)
    found = [(each.sequence, each.run) for each in record.under_way]
    found = [each for each in found if not before or each[0] < before]
    requests = s.requests_of_lane(key, domain)
    async for request in store.js.read(s.events_stream, requests, start=record.after + 1):
        if (before and request.sequence >= before) or len(found) > AHEAD_MAX:
            break
        found.append((request.sequence, s.parse_event(request.subject).run))
    return found
