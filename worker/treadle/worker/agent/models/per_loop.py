"""An HTTP client per event loop: connections of one loop cannot be used by another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """Holds the client of the running loop; one agent may be run by several loops in turn."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._client: T | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def get(self) -> T:
        """Return the client of the running loop, made at the first use."""
        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._client, self._loop = self._make(), loop
        return self._client

    def take(self) -> T | None:
        """Return the running loop's client, if any, and forget it."""
        is_ours = self._loop is asyncio.get_running_loop()
        client, self._client, self._loop = self._client, None, None
        return client if is_ours else None
