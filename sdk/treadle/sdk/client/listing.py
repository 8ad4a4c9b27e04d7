"""Runs of a namespace, newest request first, those that no engine has taken yet included."""

from __future__ import annotations

import bisect
import heapq
from collections.abc import AsyncIterator

import msgspec

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView, of_document, of_request, of_unreadable
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.lanes import Ahead
from treadle.sdk.messages import RunRequested
from treadle.sdk.run import RunDocument

REQUESTS_READ_MAX = 1000
"""Events read behind the engines: a listing stays quick also when a day's events wait."""


async def list_runs(
    store: Store, workflow: str | None, status: str | None, limit: int
) -> list[RunView]:
    """Return the newest runs that match, without their live registers.

    Reads every run's document: they are small, and a bucket has no other order than the last
    change. Memory is bounded by ``limit``, and by the runs that are now in lanes. One whose
    document cannot be read is listed as ``unreadable``, with its key for its id.
    """
    newest: list[tuple[int, str, RunView]] = []
    lanes = _Lanes()
    taken: set[str] = set()
    waiting = [view async for view in _requested(store)]
    names = {view.id for view in waiting}

    def offer(view: RunView) -> None:
        if (workflow is None or view.workflow == workflow) and status in (None, view.status):
            heapq.heappush(newest, (view.requested_ms, view.id, view))
            if len(newest) > limit:
                heapq.heappop(newest)

    async for document in store.documents():
        if isinstance(document, StoredUnreadable):
            taken.add(document.run)
            offer(of_unreadable(document))
            continue
        if document.run in names:
            taken.add(document.run)
        lanes.add(document)
        offer(of_document(document, None, {}, None))
    for view in waiting:
        if view.id not in taken:
            offer(view)
    listed = sorted(newest, key=lambda item: item[:2], reverse=True)
    return [lanes.placed(view) for _, _, view in listed]


class _Lanes:
    """The runs of a listing that are in lanes and have not ended."""

    def __init__(self) -> None:
        self._sequences: dict[str, int] = {}
        self._queued: dict[str, list[int]] = {}
        self._holders: dict[str, str] = {}

    def add(self, document: RunDocument) -> None:
        if not document.lane or document.is_terminal:
            return
        if document.status == "queued":
            self._sequences[document.run] = document.requested
            bisect.insort(self._queued.setdefault(document.lane, []), document.requested)
        else:
            self._holders[document.lane] = document.run

    def placed(self, view: RunView) -> RunView:
        """Return the view of a queued run with what stands before it."""
        if view.status != "queued" or view.id not in self._sequences:
            return view
        own = self._sequences[view.id]
        holder = self._holders.get(view.lane, "")
        before = bisect.bisect_left(self._queued[view.lane], own)
        ahead = Ahead(before + bool(holder), holder=holder)
        return msgspec.structs.replace(view, ahead=ahead)


async def _requested(store: Store) -> AsyncIterator[RunView]:
    """Yield runs whose request no engine has handled, each once."""
    seen: set[str] = set()
    s = store.subjects
    for partition in range(s.partitions):
        start = await store.handled_up_to(partition) + 1
        async for stored in store.events_behind(partition, start, REQUESTS_READ_MAX):
            event = decode_event(stored.data)
            run = s.parse_event(stored.subject).run
            if isinstance(event, RunRequested) and run not in seen:
                seen.add(run)
                yield of_request(run, event, stored.time_ms, None, None)
