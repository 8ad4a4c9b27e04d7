"""Collecting a start: stored once per id, to become part of a run with others of its key."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.collected import CollectedStart, check_start, key_of
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id, new_nonce
from treadle.sdk.messages import MetadataValue
from treadle.sdk.subjects_of_starts import StartsOf

_decoder = msgspec.json.Decoder(CollectedStart)


class Receipt(msgspec.Struct, frozen=True):
    """A start that is stored. Its run has it from ``window_first`` to ``window_last``."""

    workflow: str
    key: str
    """The value of its key; empty if the workflow has none."""
    sequence: int
    """Its place among all collected starts of the namespace."""


async def collect(
    store: Store,
    definition: WorkflowDefinition,
    version: str,
    raw: bytes,
    start_id: str,
    metadata: Mapping[str, MetadataValue] | None = None,
) -> Receipt:
    """Store a start; the same id again is the same start.

    Raise ``InvalidPayload`` if no run could take the input, ``UserError`` if the workflow does not
    collect, or if a start of that id has another input.
    """
    name = definition.name
    if definition.collect is None:
        raise UserError(
            f"workflow {name!r} does not collect its starts, so nothing would begin with this one. "
            "Start a run: client.start, or declare collect=Debounce(...) or Batch(...) on it."
        )
    check_start(definition, raw)
    key = key_of(definition, raw)
    start = CollectedStart(
        key=key.text, version=version, input=msgspec.Raw(raw), metadata=metadata or {}
    )
    data = msgspec.json.encode(start)
    s, nonce = store.subjects, new_nonce()
    starts = StartsOf(name, key.digest)
    subject = s.collected(starts, start_id, nonce)
    if not start_id:
        sequence = await _stored_fresh(store, subject, data)
        return Receipt(name, key.text, sequence)
    filter = s.collected_of_id(name, check_id("start id", start_id))
    result = await store.js.compare_and_set(
        s.collect_stream,
        subject,
        data,
        expected=0,
        filter=filter,
        is_mine=lambda found: _input_of(found) == raw,
        full_s=FULL_S,
    )
    if result.stored is not None:
        return Receipt(name, key.text, result.stored.sequence)
    # A version with another key has put it elsewhere.
    standing = await store.js.last(s.collect_stream, filter)
    if standing is not None and _input_of(standing.data) == raw:
        return Receipt(name, _decoder.decode(standing.data).key, standing.sequence)
    raise UserError(
        f"a start of workflow {name!r} with id {start_id!r} was collected with another input, and "
        "the first one counts. Choose another id, or give the same input."
    )


async def _stored_fresh(store: Store, subject: str, data: bytes) -> int:
    """Store a message on a subject of its own, once; return its sequence."""
    result = await store.js.compare_and_set(
        store.subjects.collect_stream,
        subject,
        data,
        expected=0,
        # It may be in a run, and gone, before it is read back; the id is remembered a while.
        message_id=subject,
        is_mine=lambda _: True,
        full_s=FULL_S,
    )
    assert result.stored is not None, "another start has this nonce"
    return result.stored.sequence


def _input_of(data: bytes) -> bytes | None:
    try:
        return bytes(_decoder.decode(data).input)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors.
        return None
