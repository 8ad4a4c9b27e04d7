"""What the chunks of a map hold: their part of the list, and what came of its items.

An item is named by its index in the whole list, from 0, everywhere.
"""

from __future__ import annotations

import msgspec


class MapChunk(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The part of a map's list that a task works through: its input is the list of these items."""

    first: int
    """Index of its first item."""
    count: int
    attempts_max: int = 1
    """Executions of one item that may end in a failure."""
    non_retryable: tuple[str, ...] = ()
    """Error type names that end an item at once."""
    tolerated: int = 0
    """How many items of the map may fail; with 0 the first failure for good ends it."""


class ItemFailure(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an item failed."""

    index: int
    type: str
    message: str = ""

    def __str__(self) -> str:
        """Which item failed, and why, in words."""
        cause = f"{self.type}: {self.message}" if self.message.strip() else self.type
        return f"item {self.index}: {cause}"


class Results(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What came of some items: a record of a chunk's journal, and the output of a chunk.

    A chunk that did all its items without a record and a failure puts out the plain list.
    """

    results: tuple[tuple[int, msgspec.Raw], ...] = ()
    failures: tuple[ItemFailure, ...] = ()
    """Of items that are not tried again."""
    retrying: tuple[ItemFailure, ...] = ()
    """Of items that the next attempt tries again."""


class ChunkDone(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What the end of a chunk adds up to."""

    first: int
    count: int
    failed: int = 0
    records: int = 0
    """Records of its journal that hold results; the others are in its output."""
    size_bytes: int = 0
    """Of all its results together."""
    failure: ItemFailure | None = None
    """Of the first item that failed."""
