"""Stored values, decoded in one place: what cannot be read is an error that names where it is.

Whoever reads one value lets ``StoredUnreadable`` pass; whoever reads many marks the one that is
damaged and goes on with the others.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from treadle.sdk.bus.acks import Stored
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.subjects import place_of

T = TypeVar("T")


def read(decoder: msgspec.json.Decoder[T], stored: Stored) -> T:
    """Return the value of a stored message; raise ``StoredUnreadable`` if it holds none."""
    if not stored.data:
        raise unreadable(stored, "")
    try:
        return decoder.decode(stored.data)
    except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors.
        raise unreadable(stored, str(exc)) from exc


def unreadable(stored: Stored, why: str) -> StoredUnreadable:
    """Return the error about a stored message; without a reason, its value was deleted."""
    place = place_of(stored.subject)
    return StoredUnreadable(
        place.bucket, place.key, place.run, stored.sequence, why, written_ms=stored.time_ms
    )


def missing(subject: str) -> StoredUnreadable:
    """Return the error about a value that has to be there and is not."""
    place = place_of(subject)
    return StoredUnreadable(place.bucket, place.key, place.run, 0, "")
