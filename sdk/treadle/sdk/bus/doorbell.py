"""A wake-up for readers: something may have changed, go and read.

A ring carries no data and may be lost or come twice, so whoever waits also reads after a time
limit. It saves polling, it decides nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import TracebackType

from treadle.sdk.bus.connection import Connection, Subscription


class Doorbell:
    """Rings with each message on a subject, and after each reconnect.

    It listens from the moment it is made: make it, read, then wait. Close it afterwards.
    """

    def __init__(self, connection: Connection, subject: str) -> None:
        self._rung = asyncio.Event()
        self._subscription: Subscription = connection.subscribe_raw(subject, self._ring)
        # What rang while there was no connection was not heard.
        self._forget: Callable[[], None] = connection.on_reconnect(self._rung.set)

    async def wait(self, timeout_s: float) -> bool:
        """Wait for a ring since the last wait; False if there was none in time."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._rung.wait()
        except TimeoutError:
            return False
        self._rung.clear()
        return True

    def _ring(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        self._rung.set()

    async def close(self) -> None:
        """Stop listening."""
        self._forget()
        await self._subscription.unsubscribe()

    async def __aenter__(self) -> Doorbell:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()
