"""The whole arguments of a call whose ask has only their beginning: from the step's journal.

The journal is the handler's own; all that is known here is that an object in it with the call's
hash, a name and an input is that call.
"""

from __future__ import annotations

from typing import Any, cast

import msgspec

from treadle.sdk.client.store import Store


class _Record(msgspec.Struct, frozen=True):
    body: msgspec.Raw


async def whole_input(
    store: Store, run: str, step: str, domain: str, args_hash: str
) -> msgspec.Raw | None:
    """Return the arguments of that hash as JSON; ``None`` if the journal does not have them."""
    s = store.subjects
    found: dict[str, Any] | None = None
    async for stored in store.js.read(s.steps_stream, s.records(run, step, domain)):
        if args_hash.encode() not in stored.data:
            continue
        body = msgspec.json.decode(stored.data, type=_Record).body
        found = _call(msgspec.json.decode(body), args_hash) or found
    return None if found is None else msgspec.Raw(msgspec.json.encode(found))


def _call(value: object, args_hash: str) -> dict[str, Any] | None:
    left = [value]
    while left:
        item = left.pop()
        if isinstance(item, list):
            left.extend(cast("list[object]", item))
        elif isinstance(item, dict):
            members = cast("dict[str, object]", item)
            given = members.get("input")
            is_it = members.get("args_hash") == args_hash and "name" in members
            if is_it and isinstance(given, dict):
                return cast("dict[str, Any]", given)
            left.extend(members.values())
    return None
