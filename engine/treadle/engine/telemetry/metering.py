"""From the log to metrics: a reader with a cursor of its own, beside the engine.

    cursor ──> events, then documents ──> what they count for ──> instruments ──> cursor
    server ──> queues, workers, events not handled ───────────────> gauges

It shares nothing with what exports traces, so a collector that is away holds no metric back. One
reader of a namespace is at work, that of the engine that has lived longest; the next one goes on
at its cursor. What the last seconds before a ``kill -9`` counted for may count twice.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from treadle.engine.telemetry import survey
from treadle.engine.telemetry.executions import Executions
from treadle.engine.telemetry.instruments import Instruments, Point
from treadle.engine.telemetry.log_reader import (
    LOOK_S,
    TURN_S,
    LogReader,
    RunStates,
    first_look,
    is_behind,
)
from treadle.engine.telemetry.standing import Standing
from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.store import Store
from treadle.sdk.errors import ServerError, StoredUnreadable
from treadle.sdk.messages import DeadLetter, RunRequested
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read as read_stored
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing import names

CURSOR = "metrics"
SURVEY_S = 5.0
"""How often the server is asked, and the cursor stored."""
RUNS_MAX = 50_000
"""Runs whose executions are in memory; of another one the log is read again."""
LEAVE_S = 1.0

_log = logging.getLogger("treadle.telemetry")
_documents = msgspec.json.Decoder(RunDocument)
_letters = msgspec.json.Decoder(DeadLetter)


class Cursor(msgspec.Struct, frozen=True, kw_only=True):
    """How far the log was counted: sequences of events, documents and dead letters."""

    events: int
    documents: int
    letters: int


_cursors = msgspec.json.Decoder(Cursor)


class Metering:
    """Counts what happens in a namespace."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        instruments: Instruments,
        *,
        is_first: Callable[[], Awaitable[bool]],
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._store = Store(js, subjects)
        self._instruments = instruments
        self._is_first = is_first
        self._log = LogReader(js, subjects)
        self._executions = RunStates(self._log, self._begun, runs_max=RUNS_MAX)
        self._standing = Standing(0)
        self._surveyed_s = 0.0
        self._cursor: Cursor | None = None
        """How far this reader has come, as long as it is its turn."""

    async def run(self) -> None:
        """Work whenever it is this reader's turn, until cancelled."""
        try:
            while True:
                try:
                    while not await self._is_first():
                        await asyncio.sleep(TURN_S)
                    await self._turn()
                    self._cursor = None
                except (ServerError, ApiError, Unknown) as exc:
                    self._cursor = None
                    _log.warning("telemetry.metrics-wait %r", exc)
                finally:
                    self._instruments.observe(())
                await asyncio.sleep(TURN_S)
        finally:
            await self._leave()

    async def _turn(self) -> None:
        cursor = await self._begin()
        _log.info("telemetry.metrics-begin %s", cursor)
        while True:
            moved = await self._read(cursor)
            is_more = is_behind(moved.events - cursor.events, moved.documents - cursor.documents)
            self._cursor = cursor = moved
            if time.monotonic() - self._surveyed_s >= SURVEY_S:
                if not await self._is_first():
                    return
                self._cursor = cursor = await self._survey(cursor)
            if not is_more:
                await asyncio.sleep(LOOK_S)

    async def _leave(self) -> None:
        if self._cursor is None:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._log.save(CURSOR, self._cursor)
        except (TimeoutError, ServerError, ApiError, Unknown):
            return  # The next reader counts some seconds again.

    # ---------------------------------------------------------------- begin

    async def _begin(self) -> Cursor:
        """Go to the stored cursor, and see where the runs stand there."""
        s = self._subjects
        self._executions.clear()
        self._surveyed_s = 0.0
        stored = await self._log.cursor(CURSOR, _cursors)
        if stored is not None:
            cursor, since_ms = stored
        else:
            since = first_look()
            since_ms = round(since.timestamp() * 1_000)
            cursor = Cursor(
                events=await self._log.before(s.events_stream, s.all_events, since),
                documents=await self._log.before(s.runs_stream, s.all_runs, since),
                letters=await self._log.before(s.dead_stream, s.all_letters, since),
            )
            await self._log.save(CURSOR, cursor)
        self._standing = Standing(since_ms)
        async for document in self._js.read(s.runs_stream, s.all_runs):
            if document.sequence > cursor.documents:
                break
            await self._document(document, is_old=True)
        return cursor

    # ---------------------------------------------------------------- read

    async def _read(self, cursor: Cursor) -> Cursor:
        s = self._subjects
        events = await self._log.after(s.events_stream, s.all_events, cursor.events)
        for stored in events:
            await self._event(stored)
        documents = await self._log.after(s.runs_stream, s.all_runs, cursor.documents)
        for stored in documents:
            await self._document(stored)
        return Cursor(
            events=events[-1].sequence if events else cursor.events,
            documents=documents[-1].sequence if documents else cursor.documents,
            letters=cursor.letters,
        )

    async def _event(self, stored: Stored) -> None:
        event = decode_event(stored.data)
        if event is None:
            return
        run = stored.subject.rpartition(".")[2]
        self._standing.moved(run, stored.time_us)
        executions = await self._executions.get(run, before=stored.sequence, event=event)
        if executions is not None:
            self._instruments.record(executions.event(event, stored.time_us))

    async def _begun(self, _: str, request: RunRequested) -> Executions | None:
        plan = await self._log.plan(request.workflow, request.definition)
        return None if plan is None else Executions(plan)

    async def _document(self, stored: Stored, *, is_old: bool = False) -> None:
        if not stored.data:
            return
        try:
            document = read_stored(_documents, stored)
        except StoredUnreadable:
            return  # Of a later version, or damaged: what it tells does not count here.
        plan = await self._log.plan_of(document)
        self._instruments.record(
            self._standing.document(document, plan, stored.time_us, is_old=is_old)
        )

    # ---------------------------------------------------------------- survey

    async def _survey(self, cursor: Cursor) -> Cursor:
        """Let the gauges show what there is now, and store the cursor."""
        cursor = msgspec.structs.replace(cursor, letters=await self._read_letters(cursor.letters))
        presence = await self._store.presence()
        types = self._standing.task_types
        now_us = time.time_ns() // 1_000
        self._instruments.observe(
            [
                *self._standing.gauges(now_us),
                *await survey.look(self._js, self._subjects, presence, types),
            ]
        )
        await self._log.save(CURSOR, cursor)
        self._surveyed_s = time.monotonic()
        return cursor

    async def _read_letters(self, position: int) -> int:
        s = self._subjects
        async for stored in self._js.read(s.dead_stream, s.all_letters, start=position + 1):
            position = stored.sequence
            try:
                letter = read_stored(_letters, stored)
            except StoredUnreadable:
                continue
            attributes = {metrics.REASON: letter.reason}
            if letter.workflow:
                attributes[names.WORKFLOW] = letter.workflow
            self._instruments.record([Point(metrics.DEAD_LETTERS, 1, attributes)])
        return position
