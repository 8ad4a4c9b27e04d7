"""When a run begins that is not to begin at once: what a request says of it. Pure."""

from __future__ import annotations

from typing import NamedTuple


class When(NamedTuple):
    """When a run is to begin: at a time, or so long after its request. Both 0 is at once."""

    at_ms: int = 0
    after_ms: int = 0


AT_ONCE = When()
