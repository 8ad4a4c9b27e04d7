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
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from treadle.engine.definitions import Definitions
from treadle.engine.telemetry import survey
from treadle.engine.telemetry.executions import Executions
from treadle.engine.telemetry.instruments import Instruments, Point
from treadle.engine.telemetry.standing import Standing
from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.store import Store
from treadle.sdk.errors import ServerError
from treadle.sdk.messages import DeadLetter, Event, RunRequested
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing import names

CURSOR = "metrics"
FIRST_LOOK_BACK = timedelta(minutes=5)
"""How far back the first reader of a namespace looks: runs that began while it was set up."""
LOOK_S = 0.25
"""Pause between looks at the log when there was nothing new."""
SURVEY_S = 5.0
"""How often the server is asked, and the cursor stored."""
TURN_S = 2.0
READ_MAX = 2_000
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
        self._definitions = Definitions(js, subjects)
        self._executions: OrderedDict[str, Executions | None] = OrderedDict()
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
            is_new, cursor = moved != cursor, moved
            self._cursor = cursor
            if time.monotonic() - self._surveyed_s >= SURVEY_S:
                if not await self._is_first():
                    return
                self._cursor = cursor = await self._survey(cursor)
            if not is_new:
                await asyncio.sleep(LOOK_S)

    async def _leave(self) -> None:
        if self._cursor is None:
            return
        try:
            async with asyncio.timeout(LEAVE_S):
                await self._save(self._cursor)
        except (TimeoutError, ServerError, ApiError, Unknown):
            return  # The next reader counts some seconds again.

    # ---------------------------------------------------------------- begin

    async def _begin(self) -> Cursor:
        """Go to the stored cursor, and see where the runs stand there."""
        s = self._subjects
        self._executions.clear()
        self._surveyed_s = 0.0
        stored = await self._js.last(s.workflows_stream, s.cursor(CURSOR))
        if stored is not None:
            cursor, since_ms = _cursors.decode(stored.data), stored.time_ms
        else:
            since = datetime.now(UTC) - FIRST_LOOK_BACK
            since_ms = round(since.timestamp() * 1_000)
            cursor = Cursor(
                events=await self._before(s.events_stream, s.all_events, since),
                documents=await self._before(s.runs_stream, s.all_runs, since),
                letters=await self._before(s.dead_stream, s.all_dead, since),
            )
            await self._save(cursor)
        self._standing = Standing(since_ms)
        async for document in self._js.read(s.runs_stream, s.all_runs):
            if document.sequence > cursor.documents:
                break
            await self._document(document, is_old=True)
        return cursor

    async def _before(self, stream: str, filter: str, since: datetime) -> int:
        first = await self._js.first_since(stream, filter, since)
        if first is not None:
            return first - 1
        info: dict[str, Any] = await self._js.api(f"STREAM.INFO.{stream}")
        return int(info["state"]["last_seq"])

    async def _save(self, cursor: Cursor) -> None:
        await self._js.store(self._subjects.cursor(CURSOR), msgspec.json.encode(cursor))

    # ---------------------------------------------------------------- read

    async def _read(self, cursor: Cursor) -> Cursor:
        s = self._subjects
        events = await self._after(s.events_stream, s.all_events, cursor.events)
        for stored in events:
            await self._event(stored)
        documents = await self._after(s.runs_stream, s.all_runs, cursor.documents)
        for stored in documents:
            await self._document(stored)
        return Cursor(
            events=events[-1].sequence if events else cursor.events,
            documents=documents[-1].sequence if documents else cursor.documents,
            letters=cursor.letters,
        )

    async def _after(self, stream: str, filter: str, position: int) -> list[Stored]:
        found: list[Stored] = []
        async for stored in self._js.read(stream, filter, start=position + 1):
            found.append(stored)
            if len(found) >= READ_MAX:
                break
        return found

    async def _event(self, stored: Stored) -> None:
        event = decode_event(stored.data)
        if event is None:
            return
        run = stored.subject.rpartition(".")[2]
        self._standing.moved(run, stored.time_us)
        executions = await self._of_run(run, stored.sequence, event)
        if executions is not None:
            self._instruments.record(executions.event(event, stored.time_us))

    async def _of_run(self, run: str, before: int, event: Event) -> Executions | None:
        """Return the executions of a run as they stood before the event at that sequence."""
        if run in self._executions:
            self._executions.move_to_end(run)
            return self._executions[run]
        if isinstance(event, RunRequested):
            found = await self._begun(event)
        else:
            found = await self._history(run, before)
        self._executions[run] = found
        if len(self._executions) > RUNS_MAX:
            self._executions.popitem(last=False)
        return found

    async def _begun(self, request: RunRequested) -> Executions | None:
        try:
            plan = await self._definitions.plan(request.workflow, request.definition)
        except msgspec.MsgspecError:
            return None
        return None if plan is None else Executions(plan)

    async def _history(self, run: str, before: int) -> Executions | None:
        found: Executions | None = None
        s = self._subjects
        async for stored in self._js.read(s.events_stream, s.events_of_run(run)):
            if stored.sequence >= before:
                break
            event = decode_event(stored.data)
            if found is not None and event is not None:
                found.event(event, stored.time_us)
            elif isinstance(event, RunRequested):
                found = await self._begun(event)
        return found

    async def _document(self, stored: Stored, *, is_old: bool = False) -> None:
        if not stored.data:
            return
        try:
            document = _documents.decode(stored.data)
            plan = await self._definitions.plan(document.workflow, document.definition)
        except msgspec.MsgspecError:
            return  # Of a later version: what it tells does not count here.
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
        await self._save(cursor)
        self._surveyed_s = time.monotonic()
        return cursor

    async def _read_letters(self, position: int) -> int:
        s = self._subjects
        async for stored in self._js.read(s.dead_stream, s.all_dead, start=position + 1):
            position = stored.sequence
            try:
                letter = _letters.decode(stored.data)
            except msgspec.MsgspecError:
                continue
            attributes = {metrics.REASON: letter.reason}
            if letter.workflow:
                attributes[names.WORKFLOW] = letter.workflow
            self._instruments.record([Point(metrics.DEAD_LETTERS, 1, attributes)])
        return position
