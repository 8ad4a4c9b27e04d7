"""What is read and written on JetStream for steps that wait for published events.

Whoever looks has to see whatever was stored before: a read of many may lag behind the leader, so
it is followed by reads of the leader, one by one, from where it ended.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from typing import NamedTuple

import msgspec

from treadle.sdk.bus.jetstream import JetStream, Stored
from treadle.sdk.log_fields import spaced
from treadle.sdk.matching import Path, path_key
from treadle.sdk.messages import EventMatched
from treadle.sdk.subjects import Subjects
from treadle.sdk.waiters import IndexedPath, Waiter

SKEW_MS = 50
"""A run's request and an event are stamped by the servers that lead their streams, and clocks of
servers differ: an event counts as published after a request from this much before it."""
FEW = 3
"""So many are read from the leader one by one, before a read of many is worth its round trip."""
PATHS_KNOWN_MAX = 10_000

_log = logging.getLogger("treadle.engine")
_waiters = msgspec.json.Decoder(Waiter)
_paths = msgspec.json.Decoder(IndexedPath)


class Found(NamedTuple):
    """A waiter as it is stored."""

    waiter: Waiter
    subject: str
    revision: int


class WaiterLog:
    """Waiting steps and published events of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._known_paths: set[tuple[str, str]] = set()

    # ---------------------------------------------------------------- published events

    async def published_since(self, name: str, since_ms: int) -> AsyncIterator[Stored]:
        """Yield the events of that name that were published since a run was requested."""
        s, since_ms = self._subjects, since_ms - SKEW_MS
        filter = s.external_of_name(name)
        last = await self._js.last(s.external_stream, filter)
        if last is None or last.time_ms < since_ms:
            return
        # The first sequence behind which nothing is older: the times of a stream only grow.
        low, high = 1, last.sequence
        while low < high:
            middle = (low + high) // 2
            found = await self._js.next(s.external_stream, filter, middle)
            if found is None or found.time_ms >= since_ms:
                high = middle
            else:
                low = found.sequence + 1
        async for stored in self._all(s.external_stream, filter, low):
            yield stored

    # ---------------------------------------------------------------- waiting steps

    async def put(self, waiter: Waiter, path: Path, value: str) -> str:
        """Keep a waiter, by the value it waits for at a path or for any event; return its key."""
        s, data = self._subjects, msgspec.json.encode(waiter)
        if not path:
            key = s.waiter_of_any(waiter.event, waiter.run, waiter.step)
        else:
            await self._put_path(waiter.event, path)
            key = s.waiter(waiter.event, path_key(path), value, waiter.run, waiter.step)
        await self._js.store(key, data)
        return key

    async def forget(self, event: str, run: str, step: str) -> None:
        """Drop what is kept of a step; the server looks through all that wait for the event."""
        await self.drop(self._subjects.waiters_of_step(event, run, step))

    async def drop(self, key: str, up_to: int = 0) -> None:
        """Drop a key; with ``up_to`` only what is below that revision."""
        await self._js.purge(self._subjects.waiters_stream, key, up_to=up_to)

    async def paths(self, event: str) -> list[Path]:
        """Return the paths by whose values steps wait for an event."""
        s = self._subjects
        found = self._leading(s.waiters_stream, s.indexed_paths(event), 1)
        return [_paths.decode(stored.data).path async for stored in found]

    async def by_value(self, event: str, path: Path, value: str) -> AsyncIterator[Found]:
        """Yield the waiters for a value at a path."""
        filter = self._subjects.waiters_of_value(event, path_key(path), value)
        async for found in self._waiters(filter):
            yield found

    async def of_any(self, event: str) -> AsyncIterator[Found]:
        """Yield the waiters that have to be asked about every event."""
        async for found in self._waiters(self._subjects.waiters_of_any(event)):
            yield found

    async def all(self, start: int) -> AsyncIterator[Found]:
        """Yield every waiter from a revision on, the one that was stored last at the end."""
        s = self._subjects
        async for stored in self._js.read(s.waiters_stream, s.all_waiters, start=start):
            if not s.is_indexed_path(stored.subject) and (waiter := _readable(stored)):
                yield Found(waiter, stored.subject, stored.sequence)

    async def tell(self, waiter: Waiter, matched: EventMatched) -> None:
        """Tell a run what its step waits for; twice is once."""
        await self._js.store(
            self._subjects.event(waiter.run, waiter.domain),
            msgspec.json.encode(matched),
            message_id=f"{waiter.run}:event:{waiter.step}:{matched.published}",
        )

    # ---------------------------------------------------------------- leaves

    async def _put_path(self, event: str, path: Path) -> None:
        key = path_key(path)
        if (event, key) in self._known_paths:
            return
        s = self._subjects
        subject = s.indexed_path(event, key)
        if await self._js.last(s.waiters_stream, subject) is None:
            await self._js.store(subject, msgspec.json.encode(IndexedPath(path)))
        if len(self._known_paths) >= PATHS_KNOWN_MAX:
            self._known_paths.clear()
        self._known_paths.add((event, key))

    async def _waiters(self, filter: str) -> AsyncIterator[Found]:
        async for stored in self._all(self._subjects.waiters_stream, filter, 1):
            if waiter := _readable(stored):
                yield Found(waiter, stored.subject, stored.sequence)

    async def _all(self, stream: str, filter: str, start: int) -> AsyncIterator[Stored]:
        """Yield all that match, also what a server that lags has not."""
        for _ in range(FEW):
            stored = await self._js.next(stream, filter, start)
            if stored is None:
                return
            start = stored.sequence + 1
            yield stored
        async for stored in self._js.read(stream, filter, start=start):
            start = stored.sequence + 1
            yield stored
        async for stored in self._leading(stream, filter, start):
            yield stored

    async def _leading(self, stream: str, filter: str, start: int) -> AsyncIterator[Stored]:
        while (stored := await self._js.next(stream, filter, start)) is not None:
            start = stored.sequence + 1
            yield stored


def _readable(stored: Stored) -> Waiter | None:
    try:
        return _waiters.decode(stored.data)
    except (ValueError, RecursionError) as exc:
        extra = {"subject": stored.subject, "error": repr(exc)}
        _log.error("engine.waiter-unreadable %s", spaced(extra), extra=extra)
        return None
