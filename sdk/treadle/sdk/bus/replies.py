"""Who waits for which answer: ids from a counter, and one timer for all time limits.

A timer per request costs more than the request; here one looks at all of them, a few times a
second and only while somebody waits. So a time limit is kept to within ``SWEEP_S``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from treadle.sdk.bus.wire import Message, Unknown, status_of

SWEEP_S = 0.1
_NO_RESPONDERS = 503


class Collection:
    """The messages of an answer that comes in several."""

    __slots__ = ("done", "is_last", "messages")

    def __init__(self, is_last: Callable[[Message], bool], done: asyncio.Future[None]) -> None:
        self.messages: list[Message] = []
        self.is_last = is_last
        self.done = done

    def add(self, message: Message) -> None:
        self.messages.append(message)
        if self.is_last(message) and not self.done.done():
            self.done.set_result(None)


class Replies:
    """The requests of one connection that have no answer yet."""

    __slots__ = ("_collections", "_loop", "_next", "_prefix", "_prefix_size", "_timer", "_waiting")

    def __init__(self, prefix: str, loop: asyncio.AbstractEventLoop) -> None:
        self._prefix = prefix
        self._prefix_size = len(prefix)
        self._loop = loop
        self._next = 0
        self._waiting: dict[bytes, tuple[asyncio.Future[Message], float]] = {}
        self._collections: dict[bytes, Collection] = {}
        self._timer: asyncio.TimerHandle | None = None

    def expect(self, timeout_s: float) -> tuple[str, asyncio.Future[Message]]:
        """Return a fresh reply subject and the future of the message that comes on it."""
        self._next += 1
        key = str(self._next)
        future: asyncio.Future[Message] = self._loop.create_future()
        self._waiting[key.encode()] = (future, self._loop.time() + timeout_s)
        if self._timer is None:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)
        return self._prefix + key, future

    def collect(self, is_last: Callable[[Message], bool]) -> tuple[str, Collection]:
        """Return a fresh reply subject and what comes on it; ``forget`` it afterwards."""
        self._next += 1
        key = str(self._next)
        collection = Collection(is_last, self._loop.create_future())
        self._collections[key.encode()] = collection
        return self._prefix + key, collection

    def forget(self, reply: str) -> None:
        self._collections.pop(reply[self._prefix_size :].encode(), None)

    def arrived(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        """Settle the request that the message answers; the raw handler of the inbox."""
        key = subject[self._prefix_size :]
        entry = self._waiting.pop(key, None)
        if entry is None:
            collection = self._collections.get(key)
            if collection is not None:
                collection.add(Message(subject.decode(), reply.decode(), headers, data))
            return  # Otherwise too late: its time limit has passed.
        future = entry[0]
        if future.done():
            return  # Cancelled by its waiter.
        if headers is not None and status_of(headers) == _NO_RESPONDERS:
            future.set_exception(Unknown("nobody answers on this subject now"))
        else:
            future.set_result(Message(subject.decode(), reply.decode(), headers, data))

    def fail_all(self, reason: str) -> None:
        """End every wait: no answer can come any more."""
        waiting: list[asyncio.Future[Any]] = [future for future, _ in self._waiting.values()]
        waiting += [collection.done for collection in self._collections.values()]
        self._waiting.clear()
        self._stop_timer()
        for future in waiting:
            if not future.done():
                future.set_exception(Unknown(reason))

    def _sweep(self) -> None:
        self._timer = None
        now = self._loop.time()
        late = [key for key, (_, deadline) in self._waiting.items() if deadline <= now]
        for key in late:
            future, _ = self._waiting.pop(key)
            if not future.done():
                future.set_exception(Unknown("no answer within the time limit"))
        if self._waiting:
            self._timer = self._loop.call_later(SWEEP_S, self._sweep)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
