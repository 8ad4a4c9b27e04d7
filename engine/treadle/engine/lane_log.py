"""What lanes read and write on JetStream: their requests, their runs' documents, their records.

The requests are read from the leader of the events stream, one by one: the next one behind a
sequence costs the server the same however many others are stored.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import NamedTuple

import msgspec

from treadle.engine.core.lanes import UNREADABLE, Glimpse, set_aside
from treadle.engine.core.moment import Moment
from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents
from treadle.engine.floor import AckFloor
from treadle.sdk.bus.jetstream import JetStream, Refused
from treadle.sdk.lanes import LaneRecord, Place, lane_key
from treadle.sdk.messages import Event, LaneEntered, LaneGranted, RunRequested, RunSuperseded
from treadle.sdk.subjects import Subjects

_glimpse = msgspec.json.Decoder(Glimpse)
_record = msgspec.json.Decoder(LaneRecord)
_entered = msgspec.json.Decoder(LaneEntered)
_ENTERED = b'{"event":"run.lane_entered"'
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Lane(NamedTuple):
    """A lane of a domain. A sweep that cannot read a record knows the key without the name."""

    domain: str
    name: str
    key: str

    @classmethod
    def named(cls, name: str, domain: str) -> Lane:
        """Return the lane of that name."""
        return cls(domain, name, lane_key(name))


class Kept(NamedTuple):
    """A lane's record as it stands; revision 0 is none."""

    record: LaneRecord
    revision: int
    time_ms: int = 0


class LaneLog:
    """The lanes of a namespace."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        documents: Documents,
        definitions: Definitions,
        floor: AckFloor,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._documents = documents
        self._definitions = definitions
        self._floor = floor

    # ---------------------------------------------------------------- requests and runs

    async def next(self, lane: Lane, after: int) -> Place | None:
        """Return the lane's first request behind a sequence; None if there is none."""
        s = self._subjects
        requests = s.requests_of_lane(lane.key, lane.domain)
        stored = await self._js.next(s.events_stream, requests, after + 1)
        if stored is None:
            return None
        return Place(stored.sequence, s.parse_event(stored.subject).run, _request_of(stored.data))

    async def document(self, place: Place) -> Glimpse | None:
        """Return what the stored document of a request's run says; None if there is none."""
        known = self._documents.known(place.run)
        if known is not None and known.run.place == place.sequence and known.run.is_terminal:
            return Glimpse(known.run.status, place.sequence)
        s = self._subjects
        stored = await self._js.last(s.runs_stream, s.run_document(place.run))
        if stored is None:
            return None
        try:
            return _glimpse.decode(stored.data)
        except (ValueError, RecursionError):
            return Glimpse(UNREADABLE)

    async def glimpses(self, places: Sequence[Place]) -> list[Glimpse | None]:
        """Return what the documents of several say, looked up at once."""
        return list(await asyncio.gather(*map(self.document, places)))

    async def is_registered(self, document: Glimpse) -> bool:
        """Return whether the definition of a run is there."""
        return await self._definitions.plan(document.workflow, document.definition) is not None

    async def is_set_aside(self, place: Place) -> bool:
        """Return whether a request was handled, whatever came of it."""
        return await self._floor.of(place.run) > place.sequence

    # ---------------------------------------------------------------- telling runs

    async def grant(self, lane: Lane, place: Place) -> None:
        """Tell a run that it is first in its lane; one that knows it stays as it is."""
        granted = LaneGranted(lane=lane.name, request=place.sequence)
        await self._js.store(
            self._subjects.event(place.run, lane.domain),
            msgspec.json.encode(granted),
            message_id=f"{place.run}:lane:{place.sequence}",
        )

    async def enter(self, lane: Lane, run: str, request: int) -> None:
        """Give a scheduled run its place in the lane: behind all that is there."""
        entered = LaneEntered(lane=lane.name, request=request)
        await self._js.store(
            self._subjects.request(run, lane.key, lane.domain),
            msgspec.json.encode(entered),
            message_id=f"{run}:entered:{request}",
        )

    async def supersede(self, lane: Lane, place: Place, by: str) -> None:
        """Tell a run that a later one takes its place."""
        superseded = RunSuperseded(by=by, request=place.sequence)
        await self._js.store(
            self._subjects.event(place.run, lane.domain),
            msgspec.json.encode(superseded),
            message_id=f"{place.run}:superseded:{by}",
        )

    async def close(self, lane: Lane, place: Place) -> bool:
        """Give a request that was set aside a document that has ended, unless it has one."""
        stored = await self._js.get(self._subjects.events_stream, place.sequence)
        if stored is None:
            return False  # Its run has gone in the meantime.
        moment = Moment(place.run, f"e{place.sequence}", stored.time_ms, place.sequence)
        try:
            event = _event.decode(stored.data)
        except (ValueError, RecursionError):
            event = None
        request = event if isinstance(event, RunRequested) else None
        document = set_aside(place, lane.name, request, moment, lane.domain)
        return await self._documents.put(document, 0) is not None

    # ---------------------------------------------------------------- records

    async def record(self, lane: Lane) -> Kept:
        """Return the lane's record, or an empty one of revision 0."""
        s = self._subjects
        stored = await self._js.last(s.lanes_stream, s.lane(lane.key, lane.domain))
        if stored is None:
            return Kept(LaneRecord(lane=lane.name), 0)
        return Kept(_decoded(stored.data), stored.sequence, stored.time_ms)

    async def put(self, lane: Lane, record: LaneRecord, revision: int) -> bool:
        """Store a record over the one that was read; False if another engine was faster."""
        subject = self._subjects.lane(lane.key, lane.domain)
        data = msgspec.json.encode(record)
        return not isinstance(await self._js.attempt(subject, data, expected=revision), Refused)

    async def forget(self, lane: Lane, revision: int) -> None:
        """Delete a record that is of this revision or an older one."""
        s = self._subjects
        subject = s.lane(lane.key, lane.domain)
        await self._js.purge(s.lanes_stream, subject, up_to=revision + 1)

    async def records(self, start: int) -> AsyncIterator[tuple[Lane, Kept]]:
        """Yield the records from a revision on, the one that was changed last at the end."""
        s = self._subjects
        async for stored in self._js.read(s.lanes_stream, s.all_lanes, start=start):
            domain, key = s.parse_lane(stored.subject)
            record = _decoded(stored.data)
            kept = Kept(record, stored.sequence, stored.time_ms)
            yield Lane(domain, record.lane, key), kept


def _request_of(data: bytes) -> int:
    """Return the request of a run that has entered a lane by this event; 0 of a request.

    What nobody can read is set aside like a request, and has no run.
    """
    if not data.startswith(_ENTERED):
        return 0
    try:
        return _entered.decode(data).request
    except ValueError:
        return 0


def _decoded(data: bytes) -> LaneRecord:
    try:
        return _record.decode(data)
    except (ValueError, RecursionError):
        # It is a hint: without it the lane is looked through from its beginning.
        return LaneRecord(lane="", waiting=True)
