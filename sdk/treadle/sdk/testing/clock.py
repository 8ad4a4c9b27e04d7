"""An event loop whose time jumps: when nothing is ready, the next timer is due at once.

``asyncio.sleep(3600)`` in a handler takes no time, and happens in the right order. Real input
and output still works: while a thread runs or a socket is open the loop waits for it, in real
time and for a bounded while, before it jumps.
"""

from __future__ import annotations

import asyncio
import selectors
from typing import Any

_REAL_WAIT_S = 1.0
"""Longest real wait for an open socket before time jumps to the next timer."""


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the clock instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads = 0
        """Calls that run in threads: they end in real time."""

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or timeout is None or timeout <= 0:
            return ready if ready or timeout is not None else super().select(None)
        if self.threads:
            return super().select(None)
        # One file is the loop's own wake-up pipe; more are the user's sockets.
        if len(self.get_map()) > 1 and (ready := super().select(min(timeout, _REAL_WAIT_S))):
            return ready
        self.now_s += timeout
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An asyncio loop on virtual time."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the virtual time in seconds since the loop was made."""
        return self._jumping.now_s

    def close_sockets(self) -> None:
        """Close what is still open, as the end of the worker's process would."""
        # asyncio keeps them by file, and has no other list of its transports.
        transports: Any = getattr(self, "_transports", {})
        for transport in list(transports.values()):
            transport.abort()
        self.call_soon(self.stop)
        self.run_forever()

    async def run_blocking(self, call: Any) -> Any:
        """Run a plain function in a thread; time stands still until it returns."""
        self._jumping.threads += 1
        ended = self.run_in_executor(None, call)
        ended.add_done_callback(self._thread_ended)
        return await ended

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1
