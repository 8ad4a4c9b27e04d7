"""What a run says while it works, from a sequence on, until the run has ended.

    output stream ──read from ``after``──> StreamItem, StreamItem, ...
         └── a ring when there is more          run document ── ended? then up to the newest

A reader holds nothing on the server: it reads what is stored, at its own pace, and goes on from
the sequence it has seen after whatever broke its connection.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import msgspec

from treadle.sdk import chunks
from treadle.sdk.bus.jetstream import Stored
from treadle.sdk.chunks import Chunk
from treadle.sdk.client.planned import definition_of
from treadle.sdk.client.requests import require
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import no_step
from treadle.sdk.client.waiter import Waiter
from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.sdk.run import RunDocument


class StreamItem(msgspec.Struct, frozen=True, kw_only=True):
    """One chunk of a run's output."""

    sequence: int
    """Its place in the output stream: pass it as ``after`` to go on behind it."""
    time_ms: int
    """The server's time, milliseconds since the epoch."""
    step: str
    chunk: Chunk


async def stream(
    store: Store, run: str, step: str | None, after: int, *, follow: bool
) -> AsyncIterator[StreamItem]:
    """Yield the stored chunks behind a sequence; with ``follow``, until the run has ended."""
    if after < 0:
        raise UserError(
            f"after is {after}: it is the sequence of the last item that was seen, or 0 for all. "
            "Pass the `sequence` of an item."
        )
    document = await require(store, run)
    if step is not None:
        await _check_step(store, run, document, step)
    s = store.subjects
    subject, document_subject = s.output_of_run(run, step or "*"), s.run_document(run)
    await store.js.last(s.output_stream, subject)  # Fails at once if there is no stream.
    if not follow:
        async for item in _read(store, subject, after):
            yield item
        return
    last = 0
    async with Waiter(store.js.connection, subject, document_subject) as waiter:
        while True:
            if waiter.may_have_changed(document_subject):
                found = await store.document(run)
                if found is None and document is not None:
                    return  # Its retention is over.
                document = found
                if document is not None and document.is_terminal:
                    # Workers store what they say before their verdict, so all is there by now; a
                    # replica that is read from may be behind the leader that is asked here.
                    newest = await store.js.last(s.output_stream, subject)
                    last = newest.sequence if newest is not None else -1
            found_any = False
            async for item in _read(store, subject, after):
                after, found_any = item.sequence, True
                yield item
            if last and after >= last:
                return
            await waiter.wait(found=found_any)


async def _read(store: Store, subject: str, after: int) -> AsyncIterator[StreamItem]:
    s = store.subjects
    async for stored in store.js.read(s.output_stream, subject, start=after + 1):
        yield _item(store, stored)


async def last_said(store: Store, run: str, step: str) -> StreamItem | None:
    """Return the newest chunk of a step; None if it has said nothing."""
    s = store.subjects
    stored = await store.js.last(s.output_stream, s.output_of_run(run, step))
    return _item(store, stored) if stored else None


def _item(store: Store, stored: Stored) -> StreamItem:
    return StreamItem(
        sequence=stored.sequence,
        time_ms=stored.time_ms,
        step=store.subjects.parse_output(stored.subject),
        chunk=chunks.decode(stored.data),
    )


async def _check_step(store: Store, run: str, document: RunDocument | None, step: str) -> None:
    check_id("step", step)
    if document is None:
        return
    definition = await definition_of(store, document)
    known = [each.id for each in definition.steps] if definition else []
    if known and step not in known:
        raise no_step(run, document.workflow, known, step)
