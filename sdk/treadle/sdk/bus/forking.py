"""A forked child has its parent's sockets, and must not speak on them, nor keep them open.

Two processes on one connection mix their frames, take each other's answers, and hide the death of
the one from the server. So in the child every connection is cut: its descriptor becomes that of
the null device, and it refuses to publish or to connect again. The parent notices nothing.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet

REFUSAL = "this process was forked from the one that connected, and has no connection of its own"


class Cuttable(Protocol):
    """A connection, as far as a fork concerns it."""

    def cut_off(self) -> int | None:
        """Refuse everything from now on; return the socket's descriptor, None without one."""
        ...


_connections: WeakSet[Cuttable] = WeakSet()


def guard(connection: Cuttable) -> None:
    """Cut the connection off in every child that this process forks."""
    _connections.add(connection)


def _in_child() -> None:
    descriptors = [connection.cut_off() for connection in tuple(_connections)]
    _connections.clear()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for descriptor in descriptors:
        if descriptor is not None and descriptor >= 0:
            os.dup2(null, descriptor, inheritable=False)
    os.close(null)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
