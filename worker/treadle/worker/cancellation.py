"""The token through which a handler learns that it should stop.

Tripping belongs to the event loop of the worker. Another thread may only ``mark`` a token, which
makes ``is_set`` true at once, also for a handler that blocks the loop and polls.
"""

from __future__ import annotations

import asyncio
import threading

from treadle.worker.verdict import StopReason


class _Token:
    __slots__ = ("reason",)

    def __init__(self) -> None:
        self.reason: StopReason | None = None
        """Why the execution should stop; ``None`` while it should go on."""

    def is_set(self) -> bool:
        """True when the execution should stop: its result will not count."""
        return self.reason is not None

    def raise_if_set(self) -> None:
        """Raise ``asyncio.CancelledError`` if the execution should stop."""
        if self.reason is not None:
            raise asyncio.CancelledError(self.reason)

    def mark(self, reason: StopReason) -> None:
        """Set the flag from any thread, without waking waiters."""
        if self.reason is None:
            self.reason = reason

    def trip(self, reason: StopReason) -> None:
        """Set the flag and wake waiters. On the worker's event loop only."""
        self.mark(reason)
        self._wake()

    def _wake(self) -> None:
        raise NotImplementedError


class CancelToken(_Token):
    """Tells an ``async`` handler to stop; it is also cancelled at its next ``await``."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event: asyncio.Event | None = None

    async def wait(self) -> None:
        """Return when the execution should stop."""
        # Made on first use: most executions never wait.
        if self._event is None:
            self._event = asyncio.Event()
            if self.is_set():
                self._event.set()
        await self._event.wait()

    def _wake(self) -> None:
        if self._event is not None:
            self._event.set()


class BlockingCancelToken(_Token):
    """Tells a plain-function handler to stop; it runs in a thread and must ask."""

    __slots__ = ("_event",)

    def __init__(self) -> None:
        super().__init__()
        self._event = threading.Event()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Block until the execution should stop, or the time is over; return ``is_set()``."""
        self._event.wait(timeout_s)
        return self.is_set()

    def mark(self, reason: StopReason) -> None:
        """Set the flag and wake waiters, from any thread."""
        super().mark(reason)
        self._event.set()

    def _wake(self) -> None:
        self._event.set()


AnyCancelToken = CancelToken | BlockingCancelToken
