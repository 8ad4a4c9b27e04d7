"""A run's trace as the client reads it: from the log alone, without any backend."""

from __future__ import annotations

import time

import msgspec

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.requests import requested, require
from treadle.sdk.client.store import Store
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import UnknownRun
from treadle.sdk.messages import RunRequested
from treadle.sdk.run import RunDocument
from treadle.sdk.tracing import ids
from treadle.sdk.tracing.fold import RunFold
from treadle.sdk.tracing.span import Span


class RunTrace(msgspec.Struct, frozen=True, kw_only=True):
    """The spans of a run so far, as its projector exports them."""

    run: str
    trace_id: str
    """32 hexadecimal digits; empty for a run that was started without a trace."""
    is_exported: bool
    """Whether the run is sampled: its spans go to a collector, if an engine has one."""
    spans: tuple[Span, ...]
    """What is over, in the order of the log."""
    open: tuple[Span, ...] = ()
    """What is under way; each ends now."""


async def read(store: Store, run: str) -> RunTrace:
    """Fold a run's log; raise ``UnknownRun`` if there is no such run."""
    document = await require(store, run)
    found = await requested(store, run, document)
    if found is None:
        raise UnknownRun(run)
    request, _ = found
    ref = ids.parse_ref(request.trace)
    definition = await store.definition(request.workflow, request.definition)
    if definition is None:
        definition = WorkflowDefinition(name=request.workflow, steps=())
    fold = RunFold(run, definition)
    spans: list[Span] = []
    async for stored in store.events(run):
        event = decode_event(stored.data)
        if isinstance(event, RunRequested) and ref is None:
            # Shown all the same; these ids lead nowhere.
            event = msgspec.structs.replace(event, trace=str(ids.TraceRef("0" * 31 + "1", False)))
        if event is not None:
            spans.extend(fold.event(event, stored.time_us))
    if document is not None:
        spans.extend(fold.document(document))
    now_us = time.time_ns() // 1_000
    return RunTrace(
        run=run,
        trace_id=ref.trace_id if ref else "",
        is_exported=ref is not None and ref.is_sampled,
        spans=tuple(spans),
        open=tuple(_open(fold, document, now_us)),
    )


def _open(fold: RunFold, document: RunDocument | None, now_us: int) -> list[Span]:
    if document is not None and document.is_terminal:
        return []
    return fold.unfinished(document, now_us)
