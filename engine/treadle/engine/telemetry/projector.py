"""From the log to the collector: a reader with a cursor that moves when spans were exported.

    cursor ──> events, then documents ──> folds of the runs ──> spans ──> export ──> cursor

It has a connection of its own and nothing waits for it. Whatever was not exported is read and sent
again, by this projector or the next, with the same ids and the same content. While a collector is
away the log keeps what is to be sent, as long as it keeps it at all.

It reads in the order of the log and not as a consumer: redeliveries would come out of order, and
the pulls of a projector that was killed would hold back the newest messages until they expire.

One projector of a namespace is at work, that of the engine that has lived longest; two at work for
a moment write the same.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from treadle.engine.definitions import Definitions
from treadle.engine.telemetry.folds import Folds
from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.errors import ServerError, StoredUnreadable
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read as read_stored
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing.span import Span

CURSOR = "traces"
FIRST_LOOK_BACK = timedelta(minutes=5)
"""How far back the first projector of a namespace looks: runs that began while it was set up."""
LOOK_S = 0.25
"""Pause between looks at the log when there was nothing new."""
READ_MAX = 2_000
"""Messages read before their spans are sent."""
SPANS_OF_A_REQUEST = 1_000
TURN_S = 2.0
"""How often a projector asks whether it is its turn."""
PAUSE_S_MAX = 30.0
"""Longest pause between two tries to export."""

_log = logging.getLogger("treadle.telemetry")
_documents = msgspec.json.Decoder(RunDocument)

Send = Callable[[Sequence[Span]], bool]


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the log was read and exported: sequences of events, and of documents."""

    events: int
    documents: int


_cursors = msgspec.json.Decoder(Cursor)


class Projector:
    """Writes the spans of a namespace's runs. ``send`` blocks, and is called in a thread."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        send: Send,
        *,
        is_first: Callable[[], Awaitable[bool]],
        live: bool = False,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._send = send
        self._is_first = is_first
        self._folds = Folds(js, subjects, Definitions(js, subjects), live=live)
        self._asked_s = 0.0

    async def run(self) -> None:
        """Work whenever it is this projector's turn, until cancelled."""
        while True:
            try:
                while not await self._is_first():
                    await asyncio.sleep(TURN_S)
                await self._turn(await self._cursor())
            except (ServerError, ApiError, Unknown) as exc:
                _log.warning("telemetry.projector-waits %r", exc)
            await asyncio.sleep(TURN_S)

    async def _turn(self, cursor: Cursor) -> None:
        _log.info("telemetry.projector-begins %s", cursor)
        self._folds.clear()
        while await self._is_still_first():
            spans: list[Span] = []
            moved = await self._read(cursor, spans)
            if moved == cursor:
                await asyncio.sleep(LOOK_S)
                continue
            if not await self._export(spans):
                return
            cursor = moved
            await self._save(cursor)

    async def _is_still_first(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._asked_s < TURN_S:
            return True
        self._asked_s = now_s
        return await self._is_first()

    async def _cursor(self) -> Cursor:
        """Return the stored cursor; without one what was stored in the last minutes counts."""
        workflows = self._subjects.workflows_stream
        stored = await self._js.last(workflows, self._subjects.cursor(CURSOR))
        if stored is not None:
            with contextlib.suppress(StoredUnreadable):
                return read_stored(_cursors, stored)
        s = self._subjects
        cursor = Cursor(
            events=await self._recent(s.events_stream, s.all_events),
            documents=await self._recent(s.runs_stream, s.all_runs),
        )
        await self._save(cursor)
        return cursor

    async def _recent(self, stream: str, filter: str) -> int:
        first = await self._js.first_since(stream, filter, datetime.now(UTC) - FIRST_LOOK_BACK)
        if first is not None:
            return first - 1
        info: dict[str, Any] = await self._js.api(f"STREAM.INFO.{stream}")
        return int(info["state"]["last_seq"])

    async def _save(self, cursor: Cursor) -> None:
        await self._js.store(self._subjects.cursor(CURSOR), msgspec.json.encode(cursor))

    # ---------------------------------------------------------------- read

    async def _read(self, cursor: Cursor, spans: list[Span]) -> Cursor:
        """Read on, events first: what a document tells of has to be known before it."""
        s = self._subjects
        # Taken before the events are read, so that no document here tells of a later event.
        documents = await self._after(s.runs_stream, s.all_runs, cursor.documents)
        events = await self._after(s.events_stream, s.all_events, cursor.events)
        for stored in events:
            await self._event(stored, spans)
        read = events[-1].sequence if events else cursor.events
        done = cursor.documents
        for stored in documents:
            if not await self._document(stored, read, spans):
                break
            done = stored.sequence
        return Cursor(events=read, documents=done)

    async def _after(self, stream: str, filter: str, position: int) -> list[Stored]:
        found: list[Stored] = []
        async for stored in self._js.read(stream, filter, start=position + 1):
            found.append(stored)
            if len(found) >= READ_MAX:
                break
        return found

    async def _event(self, stored: Stored, spans: list[Span]) -> None:
        event = decode_event(stored.data)
        if event is None:
            return
        run = stored.subject.rpartition(".")[2]
        fold = await self._folds.get(run, before=stored.sequence, event=event)
        if fold is not None:
            spans.extend(fold.event(event, stored.time_us))

    async def _document(self, stored: Stored, read: int, spans: list[Span]) -> bool:
        """Read a document; False if it tells of events that are still to be read."""
        if not stored.data:
            return True
        try:
            document = read_stored(_documents, stored)
        except StoredUnreadable:
            return True  # Its run is ended by the engine, with a document that can be read.
        if not document.trace:
            return True
        if _newest_event(document) > read:
            return False
        run = stored.subject.rpartition(".")[2]
        fold = await self._folds.get(run, before=read + 1)
        if fold is not None:
            spans.extend(fold.document(document))
        return True

    # ---------------------------------------------------------------- send

    async def _export(self, spans: list[Span]) -> bool:
        """Send the spans, for as long as it takes; False when it is another projector's turn."""
        pause_s = 0.5
        for start in range(0, len(spans), SPANS_OF_A_REQUEST):
            part = spans[start : start + SPANS_OF_A_REQUEST]
            while not await asyncio.to_thread(self._send, part):
                _log.warning("telemetry.export-refused; again in %g s", pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
                if not await self._is_still_first():
                    return False
        return True


def _newest_event(document: RunDocument) -> int:
    """Return the sequence of the newest event that brought a step where the document has it."""
    named = [entry.event for entry in document.steps.values() if entry.ended_ms]
    return max((int(name[1:]) for name in named if name.startswith("e")), default=0)
