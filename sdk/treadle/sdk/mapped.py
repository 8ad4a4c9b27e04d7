"""What a map whose items may fail hands on, as a type for the handler or client that reads it."""

from __future__ import annotations

from typing import Generic, TypeVar

import msgspec

from treadle.sdk.messages import ItemFailure

T = TypeVar("T")


class Mapped(msgspec.Struct, Generic[T], frozen=True):
    """The output of a map with ``tolerated_failures``: ``TaskContext[Mapped[Price]]``."""

    results: list[T | None]
    """In the order of the items; None for one that failed."""
    failures: list[ItemFailure]
    """Of these, each with its index, the error's type and its message."""
