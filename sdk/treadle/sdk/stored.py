"""Stored values, decoded in one place: what cannot be read is an error that names where it is.

Whoever reads one value lets ``StoredUnreadable`` pass; whoever reads many marks the one that is
damaged and goes on with the others.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.ids import new_nonce
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


async def put_over(
    js: JetStream,
    stream: str,
    subject: str,
    value: msgspec.Struct,
    revision: int,
    full_s: float | None = None,
) -> int:
    """Store a value over a revision, 0 is none; return its own, or 0 if another stands.

    Its field ``write`` becomes the nonce of the write, by which a lost acknowledgement is found.
    """
    nonce = new_nonce()
    result = await js.compare_and_set(
        stream,
        subject,
        msgspec.json.encode(msgspec.structs.replace(value, write=nonce)),
        expected=revision,
        is_mine=lambda data: nonce.encode() in data,
        full_s=full_s,
    )
    return result.stored.sequence if result.stored is not None else 0


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
