"""A door in an answer, shared by the server's thread and the test's."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable


class Gate:
    """The server stops at it until the test opens it. Once open it stays open."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reached = threading.Event()
        self._is_open = False
        self._wakers: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        """True once ``open`` was called."""
        return self._is_open

    def open(self) -> None:
        """Let the server go on. Callable from any thread."""
        with self._lock:
            self._is_open = True
            wakers, self._wakers = self._wakers, []
            for wake in wakers:
                wake()

    def wait_reached(self, timeout_s: float = 5.0) -> None:
        """Block until the server stands at the gate; raise ``TimeoutError`` if it does not."""
        if not self._reached.wait(timeout_s):
            raise TimeoutError(
                f"no answer came to this gate within {timeout_s} s. Is it part of a turn, "
                "and was that turn asked for?"
            )

    async def wait_open(self) -> None:
        """Wait until the gate is open. Called by the server."""
        loop = asyncio.get_running_loop()
        opened = asyncio.Event()

        def wake() -> None:
            loop.call_soon_threadsafe(opened.set)

        with self._lock:
            if not self._is_open:
                self._wakers.append(wake)
            else:
                opened.set()
        self._reached.set()
        try:
            await opened.wait()
        finally:
            # After this the loop may be closed, so nobody may call it.
            with self._lock:
                if wake in self._wakers:
                    self._wakers.remove(wake)
