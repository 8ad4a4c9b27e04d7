"""The ack floor of an event consumer: below it, no event can be delivered again."""

from __future__ import annotations

import time

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import Event, RunRequested
from treadle.sdk.subjects import Subjects

_FRESH_S = 1.0
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class AckFloor:
    """Asks for the floor of a run's partition, at most once a second."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._floors: dict[int, tuple[float, int]] = {}

    async def of(self, run: str) -> int:
        """Return the sequence below which every event of the run's partition is acked."""
        partition = self._subjects.partition(run)
        read_at, floor = self._floors.get(partition, (0.0, 0))
        now = time.monotonic()
        if now - read_at < _FRESH_S:
            return floor
        name = self._subjects.engine_consumer(partition)
        info = await self._js.api(f"CONSUMER.INFO.{self._subjects.events_stream}.{name}")
        floor = int(info["ack_floor"]["stream_seq"]) + 1
        self._floors[partition] = (now, floor)
        return floor

    async def may_start(self, run: str) -> bool:
        """Return whether a request of the run is stored and may not have been handled yet."""
        events = self._subjects.events_of_run(run)
        start = await self.of(run)
        async for stored in self._js.read(self._subjects.events_stream, events, start=start):
            if is_request(stored.data):
                return True
        return False


def is_request(data: bytes) -> bool:
    """Return whether a stored event requests a run."""
    try:
        return isinstance(_event.decode(data), RunRequested)
    except (ValueError, RecursionError):
        return False  # It is set aside when it is handled.
