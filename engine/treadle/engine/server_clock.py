"""The server's time, for what engines decide together: their own clocks may differ, and jump."""

from __future__ import annotations

import asyncio
import time

from treadle.sdk.bus.acks import time_us
from treadle.sdk.bus.jetstream import JetStream

ASKED_EVERY_S = 1.0
"""Between two looks at the server's clock; in the meantime this process counts on by itself."""


class ServerClock:
    """The time of the server that stores a stream, asked at most once a second, and only if used.

    What is counted on is monotonic, so nobody who sets this machine's clock is noticed.
    """

    def __init__(self, js: JetStream, stream: str) -> None:
        self._js = js
        self._stream = stream
        self._ahead_us = 0
        self._asked_us = -(10**18)
        self._asking = asyncio.Lock()

    async def now_us(self) -> int:
        """Return microseconds since the epoch, late by a round trip at most; raise ``Unknown``."""
        if _monotonic_us() - self._asked_us > ASKED_EVERY_S * 1_000_000:
            async with self._asking:
                if _monotonic_us() - self._asked_us > ASKED_EVERY_S * 1_000_000:
                    await self._ask()
        return _monotonic_us() + self._ahead_us

    async def ask(self) -> int:
        """Return the same, as the server says now."""
        async with self._asking:
            await self._ask()
        return _monotonic_us() + self._ahead_us

    async def _ask(self) -> None:
        info = await self._js.api(f"STREAM.INFO.{self._stream}")
        self._asked_us = _monotonic_us()
        self._ahead_us = time_us(info["ts"]) - self._asked_us


def _monotonic_us() -> int:
    return time.monotonic_ns() // 1_000
