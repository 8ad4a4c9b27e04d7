"""An event loop whose time jumps: when nothing is ready, the next timer is due at once.

``asyncio.sleep(3600)`` in a handler takes no time, and happens in the right order. Real input
and output still works: time stands still while a thread runs, or while an answer is awaited on a
socket; for that, and for sockets that are only open, it does so for a bounded while.

    register, modify ──> awaited        anyio reads a socket only while somebody waits for it;
    readable ──────────> open           asyncio's own transports read as long as they are open
"""

from __future__ import annotations

import asyncio
import selectors
import socket
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_ANSWER_WAIT_S = 20.0
"""Longest real wait for an answer: a busy machine is slow, and servers that hang are tested."""
_OPEN_WAIT_S = 1.0
"""The same for a socket from which nobody is known to await anything."""

_Ready = list[tuple[selectors.SelectorKey, int]]


class _JumpingSelector(selectors.DefaultSelector):
    """Advances the clock instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.threads = 0
        """Calls that run in threads: they end in real time."""
        self.calls = 0
        """The same, of calls that nobody says will end: libraries look up names and files so."""
        self._awaited: set[int] = set()
        """Files from which something was asked for, and nothing has come since."""

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        key = super().register(fileobj, events, data)
        # The first file is the loop's own wake-up pipe.
        if len(self.get_map()) > 1 and not _is_listening(key.fd):
            self._awaited.add(key.fd)
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        key = super().unregister(fileobj)
        self._awaited.discard(key.fd)
        return key

    def modify(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        is_read = self.get_key(fileobj).events & selectors.EVENT_READ
        key = super().modify(fileobj, events, data)
        if events & selectors.EVENT_READ and not is_read:
            self._awaited.add(key.fd)
        return key

    def select(self, timeout: float | None = None) -> _Ready:
        ready = self._come(0)
        if ready or timeout is None or timeout <= 0:
            return ready if ready or timeout is not None else self._come(None)
        if self.threads:
            return self._come(None)
        if (self._awaited or self.calls) and (ready := self._come(_ANSWER_WAIT_S)):
            return ready
        self._awaited.clear()
        self.calls = 0
        if len(self.get_map()) > 1 and (ready := self._come(min(timeout, _OPEN_WAIT_S))):
            return ready
        self.now_s += timeout
        return []

    def _come(self, wait_s: float | None) -> _Ready:
        ready = super().select(wait_s)
        for key, _ in ready:
            self._awaited.discard(key.fd)
        return ready


def _is_listening(fd: int) -> bool:
    try:
        same = socket.socket(fileno=fd)
    except OSError:
        return False  # A pipe.
    try:
        return bool(same.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN))
    finally:
        same.detach()


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

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run a plain function in a thread, and let time stand still for it for a while."""
        ended = super().run_in_executor(executor, func, *args)
        self._jumping.calls += 1
        ended.add_done_callback(self._call_ended)
        return ended

    async def run_blocking(self, call: Any) -> Any:
        """Run a plain function in a thread; time stands still until it returns."""
        self._jumping.threads += 1
        ended = super().run_in_executor(None, call)
        ended.add_done_callback(self._thread_ended)
        return await ended

    def _thread_ended(self, _: object) -> None:
        self._jumping.threads -= 1

    def _call_ended(self, _: object) -> None:
        self._jumping.calls = max(0, self._jumping.calls - 1)
