"""A worker's process in memory that can die as with ``kill -9``: not one more line of it runs.

Its coroutines are not cancelled, which would run their ``finally`` and ``except``: they are never
stepped again. That holds for all tasks that a handler has started. A thread cannot be stopped so:
a plain function goes on to its next call of the context, and ends there.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections.abc import Callable, Coroutine, Generator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from treadle.worker.registry import Handler

_process: contextvars.ContextVar[Process | None] = contextvars.ContextVar("process", default=None)


class Killed(BaseException):
    """Raised where a thread of a dead process would go on."""


class Process:
    """A worker's process."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._left: list[Coroutine[Any, Any, Any]] = []
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_dead = False
        self.memory: object = None
        """What it had in memory: kept, so that nothing of it is ended by being forgotten."""

    def start(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task of this process; the tasks that it starts belong to the process too."""
        context = contextvars.copy_context()
        context.run(_process.set, self)
        return self._loop.create_task(work, context=context)

    def keep(self, task: asyncio.Task[Any]) -> None:
        """Hold a task of this process: nobody else does once it is dead."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def end_here(self) -> None:
        """Never return: the caller's process is dead. A thread of it is ended by ``Killed``."""
        if _process.get() is not self:
            raise Killed
        await self._loop.create_future()

    def leave(self, work: Coroutine[Any, Any, Any]) -> None:
        """Keep what is not to run any more, so that it is not ended by being forgotten."""
        self._left.append(work)

    def bury(self) -> None:
        """Give the memory back once nobody looks: what the code does at its end goes unseen."""
        while self._left:
            try:
                self._left.pop().close()
            except BaseException:  # noqa: BLE001 — a dead process has nobody to tell
                continue


class Workers:
    """The processes that serve the runs of a simulation, one after the other."""

    def __init__(
        self, handlers: Callable[[], Mapping[str, Handler]], loop: asyncio.AbstractEventLoop
    ) -> None:
        self._make = handlers
        self._loop = loop
        self._dead: list[Process] = []
        self.handlers = handlers()
        self.process = Process(loop)

    def replace(self) -> None:
        """Let the process die, and start another one."""
        self.process.is_dead = True
        self.process.memory = self.handlers
        self._dead.append(self.process)
        self.process, self.handlers = Process(self._loop), self._make()

    def bury(self) -> None:
        """Forget the dead, once the simulation is over."""
        for process in self._dead:
            process.bury()


class _Mortal(Coroutine[Any, Any, Any]):
    """A coroutine of a process."""

    def __init__(self, work: Coroutine[Any, Any, Any], process: Process, loop: Any) -> None:
        self._work = work
        self._process = process
        self._loop = loop

    def send(self, value: Any, /) -> Any:
        if self._process.is_dead:
            # Wait for what never comes.
            return self._loop.create_future().__await__().send(None)
        return self._work.send(value)

    def throw(self, *error: Any) -> Any:
        if self._process.is_dead:
            self._process.leave(self._work)
            raise error[0]
        return self._work.throw(*error)

    def close(self) -> None:
        if self._process.is_dead:
            self._process.leave(self._work)
        else:
            self._work.close()

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._work, name)


def make_task(
    loop: asyncio.AbstractEventLoop,
    work: Coroutine[Any, Any, Any] | Generator[Any, None, Any],
    *,
    context: contextvars.Context | None = None,
) -> asyncio.Task[Any]:
    """Make a task; the task factory of a loop in which processes die."""
    process = context.get(_process) if context is not None else _process.get()
    assert isinstance(work, Coroutine)
    if process is None:
        return asyncio.Task(work, loop=loop, context=context)
    task = asyncio.Task(_Mortal(work, process, loop), loop=loop, context=context)
    process.keep(task)
    return task
