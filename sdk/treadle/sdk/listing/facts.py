"""A run's document as far as listings look at it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import msgspec

from treadle.sdk.bus.acks import Stored
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.metadata import INTEGER_MAX
from treadle.sdk.stored import read

UNREADABLE = "unreadable"
"""Status of a run whose document cannot be read."""


Count = Annotated[int, msgspec.Meta(ge=0, le=INTEGER_MAX)]
Label = str | bool | Annotated[int, msgspec.Meta(ge=-INTEGER_MAX, le=INTEGER_MAX)] | float


class Parent(msgspec.Struct, frozen=True):
    """The run that has started this one."""

    run: str


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Some fields of a document: decoded in a tenth of the time that all of it takes."""

    run: str
    workflow: str
    definition: str
    status: str = "running"
    requested: Count = 0
    requested_ms: Count = 0
    placed: Count = 0
    lane: str = ""
    parent: Parent | None = None
    metadata: Mapping[str, Label] = {}

    @property
    def place(self) -> int:
        """Sequence of what is the run's place in its lane: its request, or its entry."""
        return self.placed or self.requested


_decoder = msgspec.json.Decoder(Facts)


def facts_of(key: str, stored: Stored) -> Facts:
    """Return what a stored document says to listings; if it cannot be read, that."""
    try:
        return read(_decoder, stored)
    except StoredUnreadable:
        return Facts(
            run=key, workflow="", definition="", status=UNREADABLE, requested_ms=stored.time_ms
        )
