"""Runs of a namespace, newest request first, those that no engine has taken yet included."""

from __future__ import annotations

import heapq
from collections.abc import AsyncIterator

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView, of_document, of_request
from treadle.sdk.messages import RunRequested

REQUESTS_READ_MAX = 1000
"""Events read behind the engines: a listing stays quick also when a day's events wait."""


async def list_runs(
    store: Store, workflow: str | None, status: str | None, limit: int
) -> list[RunView]:
    """Return the newest runs that match, without their live registers.

    Reads every run's document: they are small, and a bucket has no other order than the last
    change. Memory is bounded by ``limit``.
    """
    newest: list[tuple[int, str, RunView]] = []
    taken: set[str] = set()
    waiting = [view async for view in _requested(store)]
    names = {view.id for view in waiting}

    def offer(view: RunView) -> None:
        if (workflow is None or view.workflow == workflow) and status in (None, view.status):
            heapq.heappush(newest, (view.requested_ms, view.id, view))
            if len(newest) > limit:
                heapq.heappop(newest)

    async for document in store.documents():
        if document.run in names:
            taken.add(document.run)
        offer(of_document(document, None, {}, None))
    for view in waiting:
        if view.id not in taken:
            offer(view)
    return [view for _, _, view in sorted(newest, key=lambda item: item[:2], reverse=True)]


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
