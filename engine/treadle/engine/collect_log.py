"""What collecting reads and writes on JetStream: starts, the records of their keys, their timers.

Starts are read from any server, in their order and without gaps, though the newest may be missing
for a moment: whoever was told of one looks again until it is there.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from treadle.engine.definitions import Definitions
from treadle.engine.timers import schedule
from treadle.sdk.bus.acks import time_us
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream, Stored
from treadle.sdk.collected import CollectDue, CollectedStart, WindowRecord, check_start
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import StoredUnreadable, UserError
from treadle.sdk.log_fields import spaced
from treadle.sdk.stored import put_over, read
from treadle.sdk.subjects import Subjects
from treadle.sdk.subjects_of_starts import StartsOf
from treadle.sdk.windows import Member

_start = msgspec.json.Decoder(CollectedStart)
_record = msgspec.json.Decoder(WindowRecord)
_due = msgspec.json.Decoder(CollectDue)

_log = logging.getLogger("treadle.engine")


class Kept(NamedTuple):
    """The record of a key as it stands; revision 0 is none."""

    record: WindowRecord
    revision: int


class Found(NamedTuple):
    """A stored start that a run can take."""

    member: Member
    start: CollectedStart


class CollectLog:
    """The collected starts of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects, definitions: Definitions) -> None:
        self._js = js
        self._subjects = subjects
        self._definitions = definitions

    async def now_ms(self) -> int:
        """Return the time of the server that stores the starts: what windows are made of."""
        info = await self._js.api(f"STREAM.INFO.{self._subjects.collect_stream}")
        return time_us(info["ts"]) // 1_000

    # ---------------------------------------------------------------- starts

    async def starts(
        self, starts: StartsOf, after: int, up_to: int = 0
    ) -> AsyncIterator[tuple[int, Found | None]]:
        """Yield what is stored of a key behind a sequence; None is one that no run can take."""
        s = self._subjects
        filter = s.collected_of_key(starts)
        async for stored in self._js.read(s.collect_stream, filter, start=after + 1):
            if up_to and stored.sequence > up_to:
                return
            yield stored.sequence, await self._found(starts, stored)

    async def start(self, starts: StartsOf, sequence: int) -> Found | None:
        """Return the start of that sequence, from the leader; None if it is gone."""
        stored = await self._js.get(self._subjects.collect_stream, sequence)
        return await self._found(starts, stored) if stored is not None else None

    async def starts_of_leader(self, starts: StartsOf, after: int, up_to: int) -> list[Found]:
        """Return the starts from behind one sequence to another, as the leader has them."""
        s = self._subjects
        filter = s.collected_of_key(starts)
        found: list[Found] = []
        while stored := await self._js.next(s.collect_stream, filter, after + 1):
            if stored.sequence > up_to:
                break
            after = stored.sequence
            if one := await self._found(starts, stored):
                found.append(one)
        return found

    async def newest(self, starts: StartsOf) -> int:
        """Return the sequence of the newest start of a key, as the leader knows it; 0 is none."""
        s = self._subjects
        stored = await self._js.last(s.collect_stream, s.collected_of_key(starts))
        return stored.sequence if stored else 0

    async def definition(self, workflow: str, version: str) -> WorkflowDefinition:
        """Return a version of a workflow; raise ``Unknown`` if it cannot be found."""
        plan = await self._definitions.plan(workflow, version)
        if plan is None:
            raise Unknown(f"version {version} of workflow {workflow!r} is not registered")
        return plan.definition

    async def _found(self, starts: StartsOf, stored: Stored) -> Found | None:
        """Return a start; None, with a line of the log, for what clients would have refused."""
        try:
            start = read(_start, stored)
            definition = await self.definition(starts.workflow, start.version)
            if definition.collect is None:
                raise UserError(f"version {start.version} does not collect its starts")
            check_start(definition, bytes(start.input))
        except (StoredUnreadable, UserError) as exc:
            extra: dict[str, object] = {
                "workflow": starts.workflow,
                "sequence": stored.sequence,
                "error": str(exc),
            }
            _log.error("engine.collected-unusable %s", spaced(extra), extra=extra)
            return None
        size_bytes = len(bytes(start.input))
        return Found(Member(stored.sequence, stored.time_ms, size_bytes, start.version), start)

    async def drop(self, starts: StartsOf, up_to: int, *, remembered_s: float) -> None:
        """Delete the starts up to a sequence: those with an id when they are old enough."""
        s, before = self._subjects, up_to + 1
        await self._js.purge(s.collect_stream, s.collected_without_id(starts), up_to=before)
        if not remembered_s:
            return
        since = datetime.fromtimestamp(await self.now_ms() / 1_000 - remembered_s, UTC)
        filter = s.collected_of_key(starts)
        young = await self._js.first_since(s.collect_stream, filter, since)
        await self._js.purge(s.collect_stream, filter, up_to=min(before, young or before))

    # ---------------------------------------------------------------- records

    async def kept(self, starts: StartsOf) -> Kept:
        """Return the record of a key; raise ``StoredUnreadable``."""
        s = self._subjects
        stored = await self._js.last(s.windows_stream, s.window(starts))
        if stored is None or not stored.data:
            return Kept(WindowRecord(), stored.sequence if stored else 0)
        return Kept(read(_record, stored), stored.sequence)

    async def put(self, starts: StartsOf, record: WindowRecord, revision: int) -> bool:
        """Store a record over a revision; False if another one stands."""
        s = self._subjects
        stored = await put_over(self._js, s.windows_stream, s.window(starts), record, revision)
        return stored > 0

    async def records(
        self, start: int
    ) -> AsyncIterator[tuple[StartsOf, WindowRecord | None, int, int]]:
        """Yield every record from a revision on, None if unreadable; its revision and its time."""
        s = self._subjects
        async for stored in self._js.read(s.windows_stream, s.all_windows, start=start):
            try:
                record = read(_record, stored)
            except StoredUnreadable:
                record = None
            yield s.parse_starts(stored.subject), record, stored.sequence, stored.time_ms

    async def forget(self, starts: StartsOf, revision: int) -> None:
        """Delete the record of a key, unless it has changed."""
        s = self._subjects
        await self._js.purge(s.windows_stream, s.window(starts), up_to=revision + 1)

    async def keys(self, start: int, count_max: int) -> tuple[set[StartsOf], int]:
        """Return whose starts are stored from a sequence on, and where to go on; 0 is the end."""
        s = self._subjects
        found: set[StartsOf] = set()
        count = 0
        async for stored in self._js.read(s.collect_stream, s.all_collected, start=start):
            found.add(s.parse_starts(stored.subject))
            count += 1
            if count == count_max:
                return found, stored.sequence
        return found, 0

    # ---------------------------------------------------------------- timers

    async def timer_ms(self, starts: StartsOf) -> int:
        """Return when the timer of a key fires; 0 if none is set."""
        s = self._subjects
        stored = await self._js.last(s.timers_stream, s.collect_timer(starts))
        try:
            return read(_due, stored).due_ms if stored else 0
        except StoredUnreadable:
            return 0

    async def set_timer(self, starts: StartsOf, due_ms: int) -> None:
        """Let the timer of a key fire at a time; it has one."""
        s = self._subjects
        due = msgspec.json.encode(CollectDue(starts.workflow, due_ms))
        headers = schedule(due_ms, s.collect_fired(starts))
        await self._js.store(s.collect_timer(starts), due, headers=headers)

    async def drop_firing(self, starts: StartsOf, sequence: int) -> None:
        """Delete what has fired of a key's timer, up to that firing."""
        s = self._subjects
        await self._js.purge(s.timers_stream, s.collect_fired(starts), up_to=sequence + 1)
