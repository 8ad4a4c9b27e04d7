"""A run as it happens: stored events and document changes, in order, until the run has ended.

    events stream ──read from the last sequence──┐
                                                 ├─> merged by time ─> RunEvent, RunEvent, ...
    run document  ──difference to the last one───┘

Nothing is missed, whenever one begins to watch: what was stored before is read first. What the
events stream holds twice (a settle repeated, or late from a worker that was given up) is shown
once; ``history`` has everything.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import assert_never

import msgspec

from treadle.sdk.client.event import RunEvent, decode_event, of_stored
from treadle.sdk.client.requests import require
from treadle.sdk.client.store import Store
from treadle.sdk.client.waiter import Waiter
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import (
    SignalReceived,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskDue,
    TaskLost,
)
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.times import date
from treadle.sdk.wording import items_text


async def history(store: Store, run: str) -> AsyncIterator[RunEvent]:
    """Yield every stored event of the run so far, raw: what was sent, not what was believed."""
    try:
        await require(store, run)
    except StoredUnreadable:
        pass  # Its events are there all the same, and may tell why.
    async for stored in store.events(run):
        yield of_stored(run, stored.sequence, stored.time_ms, stored.data)


async def watch(store: Store, run: str) -> AsyncIterator[RunEvent]:
    """Yield what happened and happens in the run, until it has ended."""
    await require(store, run)
    s = store.subjects
    reader = _Reader(store, run)
    async with Waiter(store.js.connection, s.events_of_run(run), s.run_document(run)) as waiter:
        while True:
            # The document first: every event that led to it is then in the stream.
            found = await store.document_at(run)
            async for event in reader.read(found):
                yield event
            if found is not None and found[0].is_terminal:
                return
            await waiter.wait()


class _Reader:
    """How far one watcher has read."""

    def __init__(self, store: Store, run: str) -> None:
        self._store = store
        self._run = run
        self._next = 1
        self._settles = _Settles()
        self._seen: RunDocument | None = None

    async def read(self, found: tuple[RunDocument, int] | None) -> AsyncIterator[RunEvent]:
        """Yield what is new, given the document as it stands and when it was written."""
        changes = await self._changes(*found) if found else []
        async for stored in self._store.events(self._run, self._next):
            self._next = stored.sequence + 1
            while changes and changes[0].time_ms < stored.time_ms:
                yield changes.pop(0)
            if self._settles.is_news(stored.data):
                yield of_stored(self._run, stored.sequence, stored.time_ms, stored.data)
        for change in changes:
            yield change

    async def _changes(self, document: RunDocument, written_ms: int) -> list[RunEvent]:
        changes = changes_between(self._seen, document, written_ms)
        self._seen = document
        return [await self._with_output(change, document) for change in changes]

    async def _with_output(self, change: RunEvent, document: RunDocument) -> RunEvent:
        if change.kind != "step.ended" or change.status != "completed":
            return change
        event_id = document.steps[change.step].event
        stored = await self._store.event(int(event_id[1:])) if event_id[:1] == "e" else None
        event = decode_event(stored.data) if stored else None
        match event:
            case StepCompleted() if event.step == change.step:
                return msgspec.structs.replace(change, value=event.output)
            case SignalReceived():
                return msgspec.structs.replace(change, value=event.payload)
            case _:
                return change


class _Settles:
    """Tells settles that are news from repeated and late ones.

    Tokens of a step only grow, and a token is settled once; an iteration is continued once.
    """

    def __init__(self) -> None:
        self._tokens: dict[str, int] = {}
        self._iterations: dict[str, int] = {}

    def is_news(self, raw: bytes) -> bool:
        event = decode_event(raw)
        if isinstance(event, TaskDue | StepCompleted):
            # The end of a step is told by the document, once. Due is for the engine only.
            return False
        if not isinstance(event, StepContinued | StepWaiting | StepFailed | TaskLost):
            return True
        if event.token <= self._tokens.get(event.step, 0):
            return False
        if isinstance(event, StepContinued | StepWaiting):
            if event.iteration <= self._iterations.get(event.step, -1):
                return False
            self._iterations[event.step] = event.iteration
        self._tokens[event.step] = event.token
        return True


def changes_between(old: RunDocument | None, new: RunDocument, written_ms: int) -> list[RunEvent]:
    """Return what happened between two documents of a run, oldest first.

    ``written_ms`` is when the newer one was written, for changes that carry no time.
    """
    changes: list[RunEvent] = []
    if old is None and new.starts_ms:
        changes.append(
            RunEvent(
                kind="run.scheduled",
                run=new.run,
                time_ms=new.requested_ms,
                detail=f"begins {date(new.starts_ms)}",
            )
        )
    if (old is None or old.status == "scheduled") and new.status == "queued":
        at_ms = max(new.requested_ms, new.starts_ms)
        changes.append(RunEvent(kind="run.queued", run=new.run, time_ms=at_ms, name=new.lane))
    for step, entry in new.steps.items():
        before = old.steps.get(step) if old else None
        changes.extend(_step_changes(new.run, step, before, entry, written_ms))
    changes.extend(_progress(old, new, written_ms))
    changes.sort(key=lambda change: change.time_ms)
    if new.is_terminal and not (old and old.is_terminal):
        changes.append(
            RunEvent(
                kind="run.ended",
                run=new.run,
                time_ms=new.ended_ms,
                step=new.failed_step,
                status=new.status,
                failure=new.failure,
            )
        )
    return changes


def _progress(old: RunDocument | None, new: RunDocument, written_ms: int) -> list[RunEvent]:
    """Return how far the maps have come since; their last chunk ends them, which is told."""
    found: list[RunEvent] = []
    for step, state in new.maps.items():
        before = old.maps.get(step) if old else None
        if new.steps[step].status != "active" or state.done == (before.done if before else 0):
            continue
        text = items_text(state.done, state.items, state.failed)
        found.append(
            RunEvent(kind="map.progress", run=new.run, time_ms=written_ms, step=step, detail=text)
        )
    return found


def _step_changes(
    run: str, step: str, before: StepEntry | None, entry: StepEntry, written_ms: int
) -> list[RunEvent]:
    found: list[RunEvent] = []
    if before is None and entry.status != "skipped":
        found.append(RunEvent(kind="step.started", run=run, time_ms=entry.started_ms, step=step))
    if entry.status == (before.status if before else "active"):
        return found
    time_ms = entry.ended_ms or written_ms
    match entry.status:
        case "active":
            found.append(RunEvent(kind="step.resumed", run=run, time_ms=time_ms, step=step))
        case "parked" | "completed" | "skipped" | "failed" | "cancelled":
            parked = entry.status == "parked"
            ended = RunEvent(
                kind="step.parked" if parked else "step.ended",
                run=run,
                time_ms=time_ms,
                step=step,
                status="" if parked else entry.status,
                iterations=entry.iterations,
                failure=entry.failure,
            )
            found.append(ended)
        case "waiting" | "deciding":
            pass
        case _:
            assert_never(entry.status)
    return found
