"""Tasks that somebody has started and nobody awaits, until it is time to stop."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any


class UnderWay:
    """Tasks under way: kept until they are over, and waited for at the end."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until everything started is over, at most so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)
