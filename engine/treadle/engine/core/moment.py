"""When and by what something happened: all the core knows of the world outside."""

from __future__ import annotations

from typing import NamedTuple


class Moment(NamedTuple):
    """The event being handled: time and identity come in as data, never from a clock."""

    run: str
    id: str
    """Stream letter and sequence of the event: ``e`` events stream, ``t`` timers stream."""
    ms: int
    """The server's time stamp of the event, milliseconds since the epoch."""
    sequence: int = 0
    """The sequence inside ``id``, as a number."""
