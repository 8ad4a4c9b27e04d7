"""Publishing an event to a namespace: stored once per id, whoever waits for it or will."""

from __future__ import annotations

import msgspec

from treadle.sdk import payload
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id, new_nonce
from treadle.sdk.matching import check_event_name


class Published(msgspec.Struct, frozen=True):
    """An event that is stored."""

    name: str
    id: str
    sequence: int
    """Its place among all published events of the namespace."""
    is_repeated: bool = False
    """An event of this id was stored before, with the same payload: nothing was stored now."""


async def publish(store: Store, name: str, value: object, event_id: str) -> Published:
    """Store an event; the same id again is the same event.

    Raises ``UserError`` if an event of that name and id was published with another payload.
    """
    check_event_name(name)
    event_id = check_id("event id", event_id) if event_id else new_nonce()
    raw = payload.encode(f"payload of event {name!r}", value)
    s = store.subjects
    result = await store.js.compare_and_set(
        s.external_stream,
        s.external(name, event_id),
        raw,
        expected=0,
        is_mine=lambda stored: stored == raw,
        full_s=FULL_S,
    )
    if result.stored is not None:
        return Published(name, event_id, result.stored.sequence, result.is_repeated)
    raise UserError(
        f"event {name!r} with id {event_id!r} was published with another payload, and the first "
        "one counts. Choose another id, or publish the same payload."
    )
