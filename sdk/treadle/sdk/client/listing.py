"""Lists of runs, newest request first, those that no engine has taken yet included.

events behind the engines ──────────────> runs that are only requested
index of an engine, or else a scan ─────> which runs there are          (``scanning.py``)
bucket, the keys of one page ───────────> what they are like
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import msgspec

from treadle.sdk.bus.connection import Unknown
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.scanning import scan
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView, of_document, of_request, of_unreadable
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.lanes import Ahead
from treadle.sdk.listing.filters import RunFilter, matches
from treadle.sdk.listing.wire import ANSWER_S, Position, RunFound, RunsAsked, RunsFound
from treadle.sdk.messages import RunRequested

REQUESTS_READ_MAX = 1000
"""Events read behind the engines: a listing stays quick also when a day's events wait."""
READS_AT_ONCE = 64
"""Documents of a page that are asked for together."""

_answers = msgspec.json.Decoder(RunsFound)


class RunPage(msgspec.Struct, frozen=True, kw_only=True):
    """Some runs of a listing, newest request first, without their notes and live steps."""

    runs: tuple[RunView, ...]
    cursor: str | None = None
    """Where the listing goes on; None is its end."""
    scanned: int = 0
    """Documents that were read to find them; 0 if an engine's index told."""


class RunCounts(msgspec.Struct, frozen=True, kw_only=True):
    """How many runs there are."""

    total: int
    by_status: dict[str, int]
    scanned: int = 0
    """Documents that were read to count them; 0 if an engine's index told."""


async def list_runs(store: Store, wanted: RunFilter, limit: int, below: Position | None) -> RunPage:
    """Return the newest runs that match, behind ``below``.

    One whose document cannot be read is listed as ``unreadable``, with its key for its id.
    """
    asking = _Asking(store)
    waiting = {view.id: view async for view in _requested(store) if matches(wanted, view)}
    names = tuple(waiting)
    found: list[RunView] = []
    last, is_more = below, True
    while is_more and len(found) < limit:
        answer = await asking.ask(
            RunsAsked(filter=wanted, limit=limit - len(found), below=last, known=names)
        )
        for run in answer.known:
            waiting.pop(run, None)
        found += await _read(store, wanted, answer.runs)
        names, is_more = (), answer.is_more
        if answer.runs:
            last = Position(answer.runs[-1].requested_ms, answer.runs[-1].run)
    found += [view for view in waiting.values() if below is None or _place(view) < below]
    found.sort(key=_place, reverse=True)
    runs = tuple(found[:limit])
    goes_on = runs and (is_more or len(found) > limit)
    return RunPage(
        runs=runs,
        cursor=_place(runs[-1]).to_text() if goes_on else None,
        scanned=asking.scanned,
    )


async def count_runs(store: Store, wanted: RunFilter) -> RunCounts:
    """Return how many runs match."""
    asking = _Asking(store)
    waiting = {view.id: view async for view in _requested(store) if matches(wanted, view)}
    answer = await asking.ask(RunsAsked(filter=wanted, limit=0, known=tuple(waiting), counts=True))
    counts = dict(answer.counts)
    if requested := waiting.keys() - set(answer.known):
        counts["requested"] = len(requested)
    return RunCounts(
        total=sum(counts.values()), by_status=dict(sorted(counts.items())), scanned=asking.scanned
    )


class _Asking:
    """Whom a listing asks: an index as long as one answers, else every document."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._at_least = -1
        self._has_index = True
        self.scanned = 0

    async def ask(self, asked: RunsAsked) -> RunsFound:
        """Return an answer in which everything is that was stored when the listing began."""
        if self._has_index:
            answer = await self._index(asked)
            if answer is not None:
                return answer
            self._has_index = False
        answer, count = await scan(self._store, asked)
        self.scanned += count
        return answer

    async def _index(self, asked: RunsAsked) -> RunsFound | None:
        js, s = self._store.js, self._store.subjects
        if self._at_least < 0:
            newest = await js.last(s.runs_stream, s.all_runs)
            self._at_least = newest.sequence if newest else 0
        request = msgspec.json.encode(msgspec.structs.replace(asked, at_least=self._at_least))
        try:
            message = await js.connection.request(s.index, request, timeout_s=ANSWER_S)
            answer = _answers.decode(message.data)
        except (Unknown, msgspec.DecodeError):
            return None
        return answer if answer.position >= self._at_least else None


async def _read(store: Store, wanted: RunFilter, runs: Sequence[RunFound]) -> list[RunView]:
    """Return the runs as they are now; what has gone or changed in between is left out."""
    views: list[RunView] = []
    for first in range(0, len(runs), READS_AT_ONCE):
        some = runs[first : first + READS_AT_ONCE]
        read = await asyncio.gather(*(_view(store, found) for found in some))
        views += [view for view in read if view is not None and matches(wanted, view)]
    return views


async def _view(store: Store, found: RunFound) -> RunView | None:
    try:
        document = await store.document(found.run)
    except StoredUnreadable as exc:
        return None if exc.is_deleted else of_unreadable(exc)
    if document is None:
        return None
    is_queued = document.status == "queued" and found.ahead >= 0
    places = document.places
    ahead = Ahead(found.ahead, holder=found.holder, places=places) if is_queued else None
    return of_document(document, None, {}, None, ahead)


def _place(view: RunView) -> Position:
    return Position(view.requested_ms, view.id)


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
