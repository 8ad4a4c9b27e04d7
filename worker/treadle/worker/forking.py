"""A child that a handler forks is no worker: it ends where it would go on as one.

``os.fork`` copies the whole process, its event loop and what the loop has in hand included. A child
that ends by itself, or executes another program, is left alone; one that returns from the handler,
or awaits something, would execute every handler a second time. Its connections are cut already
(``treadle.sdk.bus.forking``).
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from weakref import WeakSet

EXIT_CODE = 70
_TEXT = (
    b"worker: a handler has forked the worker's process, and the child went on as the worker: it "
    b"ends here. End a child with os._exit(), or use subprocess or multiprocessing.\n"
)

_loops: WeakSet[asyncio.AbstractEventLoop] = WeakSet()
_is_child = False


@contextmanager
def guarded() -> Generator[None]:
    """While a worker runs on this event loop, end children of the process that come back to it."""
    loop = asyncio.get_running_loop()
    _loops.add(loop)
    try:
        yield
    finally:
        _loops.discard(loop)


def end_child(error: BaseException | None = None) -> None:
    """End this process if it is such a child; one that raised ``SystemExit`` with its own code."""
    if not _is_child:
        return
    if isinstance(error, SystemExit):
        # Nothing is flushed: what is buffered is the parent's, who writes it.
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    os.write(2, _TEXT)
    os._exit(EXIT_CODE)


def _in_child() -> None:
    global _is_child
    if not _loops:
        return
    _is_child = True
    # A loop of another thread does not run here: that thread was not copied.
    for loop in tuple(_loops):
        with suppress(RuntimeError):
            loop.call_soon(end_child)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
