"""The runs that the steps of a run have started: named by its document, read one by one."""

from __future__ import annotations

from treadle.sdk.client import requests
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView, of_document, of_request
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.run import child_of

CHILDREN_MAX = 1_000
"""Runs that are read of one run; a workflow has as many steps at most."""


async def children(store: Store, run: str) -> list[RunView]:
    """Return the children of a run as they began, without their notes and live steps.

    Those whose retention has passed are left out. Raises ``UnknownRun`` if there is no such run.
    """
    document = await requests.require(store, run)
    if document is None:
        return []
    names = [
        child_of(document, step_id, attempt)
        for step_id, entry in document.steps.items()
        for attempt in range(1, entry.attempt + 1)
    ]
    found = [await _view(store, name) for name in names[:CHILDREN_MAX]]
    return [view for view in found if view is not None]


async def _view(store: Store, run: str) -> RunView | None:
    try:
        document = await store.document(run)
    except StoredUnreadable as error:
        return RunView(id=run, workflow="", status="unreadable", requested_ms=error.written_ms)
    if document is not None:
        return of_document(document, None, {}, None)
    requested = await requests.requested(store, run, None)
    return of_request(run, *requested, None, None) if requested else None
