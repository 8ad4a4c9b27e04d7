"""Threads for handlers that are plain functions.

A pool of our own: the loop's default executor is shared with name resolution and with whatever
users put there, and its threads keep a process from ending. These do not. The pool grows to what
is needed at once; the worker's slots bound that.
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable
from queue import SimpleQueue

import msgspec

from treadle.worker import forking


class _Outcome(msgspec.Struct, frozen=True):
    value: object = None
    error: BaseException | None = None


class _Job:
    __slots__ = ("call", "context", "future", "loop")

    def __init__(self, call: Callable[[], object]) -> None:
        self.call = call
        self.context = contextvars.copy_context()
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[_Outcome] = self.loop.create_future()

    def deliver(self, outcome: _Outcome) -> None:
        try:
            self.loop.call_soon_threadsafe(self._set, outcome)
        except RuntimeError:
            pass  # The loop has ended: nobody waits for an abandoned handler.

    def run(self) -> _Outcome:
        try:
            return _Outcome(value=self.context.run(self.call))
        except BaseException as exc:  # noqa: BLE001 — raised again where it is awaited
            return _Outcome(error=exc)

    def _set(self, outcome: _Outcome) -> None:
        if not self.future.done():
            self.future.set_result(outcome)


class BlockingPool:
    """Runs functions that may block, each in a thread."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    async def run(self, call: Callable[[], object]) -> object:
        """Run the function in a thread; return what it returns, raise what it raises."""
        job = _Job(call)
        self._provide_thread()
        self._jobs.put(job)
        outcome = await job.future
        if outcome.error is not None:
            raise outcome.error
        return outcome.value

    def close(self) -> None:
        """Let idle threads end; a busy one ends after its function."""
        with self._lock:
            for _ in range(self._threads):
                self._jobs.put(None)

    def _provide_thread(self) -> None:
        with self._lock:
            if self._idle:
                self._idle -= 1
                return
            self._threads += 1
            number = self._threads
        threading.Thread(target=self._serve, name=f"{self._name}-{number}", daemon=True).start()

    def _serve(self) -> None:
        while (job := self._jobs.get()) is not None:
            outcome = job.run()
            forking.end_child(outcome.error)
            with self._lock:
                self._idle += 1
            job.deliver(outcome)
            del job, outcome  # An idle thread must not keep a handler's objects alive.
