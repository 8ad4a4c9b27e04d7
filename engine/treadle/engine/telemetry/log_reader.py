"""The log as telemetry reads it: on from a position, and the runs as far as they have come.

A run that is not in memory is read from the log again, so its state is a cache.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Generic, Protocol, TypeVar

import msgspec

from treadle.engine.core.plan import Plan
from treadle.engine.definitions import Definitions
from treadle.engine.inputs import Outputs
from treadle.engine.planned import RunPlans
from treadle.engine.registers import Registers
from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Event, RunRequested
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read as read_stored
from treadle.sdk.subjects import Subjects

FIRST_LOOK_BACK = timedelta(minutes=5)
"""How far back the first reader of a namespace looks: runs that began while it was set up."""
LOOK_S = 0.25
"""Pause between looks at the log, for a reader that is not behind."""
TURN_S = 2.0
"""How often a reader asks whether it is its turn."""
READ_MAX = 2_000
"""Messages read before what they say is passed on."""


class Following(Protocol):
    """What is known of a run, moved on by its events."""

    def event(self, event: Event, at_us: int) -> object:
        """Take note of an event; ``at_us`` is when it was stored."""
        ...


C = TypeVar("C")
T = TypeVar("T", bound=Following)


class LogReader:
    """Reads streams on, in their order."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._definitions = Definitions(js, subjects)
        self._plans = RunPlans(self._definitions, Registers(js, subjects), Outputs(0))

    async def cursor(self, name: str, decoder: msgspec.json.Decoder[C]) -> tuple[C, int] | None:
        """Return a stored cursor and when it was stored, in ms; None if there is none to read."""
        s = self._subjects
        stored = await self._js.last(s.workflows_stream, s.cursor(name))
        if stored is None:
            return None
        try:
            return read_stored(decoder, stored), stored.time_ms
        except StoredUnreadable:
            return None

    async def save(self, name: str, cursor: msgspec.Struct) -> None:
        """Store a cursor."""
        await self._js.store(self._subjects.cursor(name), msgspec.json.encode(cursor))

    async def after(
        self, stream: str, filter: str, position: int, limit: int = READ_MAX
    ) -> list[Stored]:
        """Return the next messages that match, ``limit`` at most."""
        found: list[Stored] = []
        async for stored in self._js.read(stream, filter, start=position + 1):
            found.append(stored)
            if len(found) >= limit:
                break
        return found

    async def before(self, stream: str, filter: str, since: datetime) -> int:
        """Return the position behind which lies what was stored since then."""
        # The end first: what is stored while one looks for the first message lies behind it.
        info: dict[str, Any] = await self._js.api(f"STREAM.INFO.{stream}")
        first = await self._js.first_since(stream, filter, since)
        return int(info["state"]["last_seq"]) if first is None else first - 1

    async def plan(self, workflow: str, content_hash: str) -> Plan | None:
        """Return a workflow's plan; None if it is not there or cannot be read."""
        try:
            return await self._definitions.plan(workflow, content_hash)
        except StoredUnreadable:
            return None

    async def plan_of(self, run: RunDocument) -> Plan | None:
        """Return a run's plan, with what its planners have planned as far as it can be read."""
        try:
            return await self._plans.of_run(run)
        except StoredUnreadable:
            return await self.plan(run.workflow, run.definition)

    async def history(self, run: str, before: int) -> list[Stored]:
        """Return the run's events before a sequence."""
        found: list[Stored] = []
        s = self._subjects
        async for stored in self._js.read(s.events_stream, s.events_of_run(run)):
            if stored.sequence >= before:
                break
            found.append(stored)
        return found


class RunStates(Generic[T]):
    """What is known of each run; None stands for a run that is not followed."""

    def __init__(
        self,
        log: LogReader,
        begin: Callable[[str, RunRequested], Awaitable[T | None]],
        *,
        runs_max: int,
    ) -> None:
        self._log = log
        self._begin = begin
        self._runs_max = runs_max
        self._states: OrderedDict[str, T | None] = OrderedDict()

    async def get(self, run: str, *, before: int, event: Event | None = None) -> T | None:
        """Return what is known of a run before the event at that sequence.

        ``event`` is that event; one that requests the run spares the look at what was before.
        """
        if run in self._states:
            self._states.move_to_end(run)
            return self._states[run]
        if isinstance(event, RunRequested):
            state = await self._begin(run, event)
        else:
            state = await self._read(run, before)
        self._states[run] = state
        if len(self._states) > self._runs_max:
            self._states.popitem(last=False)
        return state

    def clear(self) -> None:
        """Forget all: another reader may have gone on since."""
        self._states.clear()

    async def _read(self, run: str, before: int) -> T | None:
        state: T | None = None
        for stored in await self._log.history(run, before):
            event = decode_event(stored.data)
            if state is None and isinstance(event, RunRequested):
                state = await self._begin(run, event)
                if state is None:
                    return None
            if state is not None and event is not None:
                state.event(event, stored.time_us)
        return state


def is_behind(*moved: int, limit: int = READ_MAX) -> bool:
    """True when a look moved by as many messages as it reads: there may be more."""
    return max(moved) >= limit


def first_look() -> datetime:
    """Return since when the first reader of a namespace looks."""
    return datetime.now(UTC) - FIRST_LOOK_BACK
