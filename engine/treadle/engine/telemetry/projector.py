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
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence

import msgspec

from treadle.engine.telemetry.contents import Contents
from treadle.engine.telemetry.exporting import NotExported
from treadle.engine.telemetry.log_reader import (
    LOOK_S,
    READ_MAX,
    TURN_S,
    LogReader,
    RunStates,
    first_look,
    is_behind,
)
from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.errors import ServerError, StoredUnreadable
from treadle.sdk.messages import RunRequested
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read as read_stored
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing import names
from treadle.sdk.tracing.fold import RunFold
from treadle.sdk.tracing.ids import parse_ref
from treadle.sdk.tracing.span import Span

CURSOR = "traces"
FOLDS_MAX = 20_000
"""Runs whose folds are in memory."""
SPANS_OF_A_REQUEST = 1_000
CHARS_OF_A_REQUEST = 2_000_000
"""Of the texts of its spans: with content a request would be larger than collectors take."""
READ_WITH_CONTENT_MAX = 100
"""Messages read before their spans are sent, when these have content."""
PAUSE_S_MAX = 30.0
"""Longest pause between two tries to export."""

_log = logging.getLogger("treadle.telemetry")
_documents = msgspec.json.Decoder(RunDocument)

Send = Callable[[Sequence[Span]], None]


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the log was read and exported: sequences of events, and of documents."""

    events: int
    documents: int


_cursors = msgspec.json.Decoder(Cursor)


class Projector:
    """Writes the spans of a namespace's runs.

    ``send`` blocks, is called in a thread, and raises ``NotExported``.
    """

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        send: Send,
        *,
        is_first: Callable[[], Awaitable[bool]],
        live: bool = False,
        content: bool = False,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._send = send
        self._is_first = is_first
        self._live = live
        self._log = LogReader(js, subjects)
        self._contents = Contents(js, subjects) if content else None
        self._read_max = READ_WITH_CONTENT_MAX if content else READ_MAX
        self._folds = RunStates(self._log, self._begun, runs_max=FOLDS_MAX)
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
        if self._contents is not None:
            self._contents.clear()
        while await self._is_still_first():
            spans: list[Span] = []
            moved = await self._read(cursor, spans)
            events, documents = moved.events - cursor.events, moved.documents - cursor.documents
            is_more = is_behind(events, documents, limit=self._read_max)
            if moved != cursor:
                if not await self._export(spans):
                    return
                cursor = moved
                await self._log.save(CURSOR, cursor)
            if not is_more:
                # Many at once: a look, a request and a cursor cost the same for one.
                await asyncio.sleep(LOOK_S)

    async def _is_still_first(self) -> bool:
        now_s = time.monotonic()
        if now_s - self._asked_s < TURN_S:
            return True
        self._asked_s = now_s
        return await self._is_first()

    async def _cursor(self) -> Cursor:
        """Return the stored cursor; without one what was stored in the last minutes counts."""
        stored = await self._log.cursor(CURSOR, _cursors)
        if stored is not None:
            return stored[0]
        s, since = self._subjects, first_look()
        cursor = Cursor(
            events=await self._log.before(s.events_stream, s.all_events, since),
            documents=await self._log.before(s.runs_stream, s.all_runs, since),
        )
        await self._log.save(CURSOR, cursor)
        return cursor

    # ---------------------------------------------------------------- read

    async def _read(self, cursor: Cursor, spans: list[Span]) -> Cursor:
        """Read on, events first: what a document tells of has to be known before it."""
        s = self._subjects
        limit = self._read_max
        # Taken before the events are read, so that no document here tells of a later event.
        documents = await self._log.after(s.runs_stream, s.all_runs, cursor.documents, limit)
        events = await self._log.after(s.events_stream, s.all_events, cursor.events, limit)
        for stored in events:
            await self._event(stored, spans)
        read = events[-1].sequence if events else cursor.events
        done = cursor.documents
        for stored in documents:
            if not await self._document(stored, read, spans):
                break
            done = stored.sequence
        return Cursor(events=read, documents=done)

    async def _begun(self, run: str, request: RunRequested) -> RunFold | None:
        ref = parse_ref(request.trace)
        if ref is None or not ref.is_sampled:
            return None
        plan = await self._log.plan(request.workflow, request.definition)
        return None if plan is None else RunFold(run, plan.definition, live=self._live)

    async def _event(self, stored: Stored, spans: list[Span]) -> None:
        event = decode_event(stored.data)
        if event is None:
            return
        run = stored.subject.rpartition(".")[2]
        fold = await self._folds.get(run, before=stored.sequence, event=event)
        if fold is not None:
            told = fold.event(event, stored.time_us)
            if self._contents is None:
                spans.extend(map(_without_text, told))
                return
            domain = self._subjects.parse_event(stored.subject).domain
            spans.extend(await self._contents.of_event(fold, domain, event, told))

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
            told = fold.document(document)
            if self._contents is None:
                spans.extend(map(_without_text, told))
            else:
                spans.extend(await self._contents.of_document(fold, document, told))
        return True

    # ---------------------------------------------------------------- send

    async def _export(self, spans: list[Span]) -> bool:
        """Send the spans, for as long as it takes; False when it is another projector's turn."""
        pause_s = 0.5
        for part in _requests(spans):
            while (why := await self._refused(part)) is not None:
                _log.warning("telemetry.export-refused %s; again in %g s", why, pause_s)
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, PAUSE_S_MAX)
                if not await self._is_still_first():
                    return False
        return True

    async def _refused(self, spans: list[Span]) -> NotExported | None:
        try:
            await asyncio.to_thread(self._send, spans)
        except NotExported as exc:
            return exc
        return None


def _without_text(span: Span) -> Span:
    """Return the span without what an exception says, which may be anything; its type stays."""
    if not span.error_text or span.attributes.get(names.VERDICT) == "lost":
        return span  # Why a worker was lost is said by another.
    return msgspec.structs.replace(span, error_text="")


def _requests(spans: Sequence[Span]) -> Iterator[list[Span]]:
    request: list[Span] = []
    left = CHARS_OF_A_REQUEST
    for span in spans:
        size = sum(len(value) for value in span.attributes.values() if isinstance(value, str))
        if request and (len(request) == SPANS_OF_A_REQUEST or size > left):
            yield request
            request, left = [], CHARS_OF_A_REQUEST
        request.append(span)
        left -= size
    if request:
        yield request


def _newest_event(document: RunDocument) -> int:
    """Return the sequence of the newest event that brought a step where the document has it."""
    named = [entry.event for entry in document.steps.values() if entry.ended_ms]
    return max((int(name[1:]) for name in named if name.startswith("e")), default=0)
