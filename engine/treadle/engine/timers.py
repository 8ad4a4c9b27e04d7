"""Durable timers: message schedules in the timers stream.

A schedule is a hint. It fires 0 to 250 ms late, survives a server's kill -9, and a cancel can
lose against a firing; so what fires is an event that goes through the core like any other.
"""

from __future__ import annotations

from datetime import UTC, datetime

import msgspec

from treadle.engine.core.effects import SetTimer
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.subjects import Subjects


class Timers:
    """The timers of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects

    async def set(self, run: str, timer: SetTimer) -> None:
        """Make the timer's event fire at its time; a second call with one id replaces it."""
        await self._js.store(
            self._subjects.timer(run, timer.id),
            msgspec.json.encode(timer.event),
            headers=schedule(timer.due_ms, self._subjects.fired(run, timer.id)),
        )

    async def clear(self, run: str) -> None:
        """Drop every schedule of a run, and what has fired of them."""
        stream = self._subjects.timers_stream
        await self._js.purge(stream, self._subjects.timers_of_run(run))
        await self._js.purge(stream, self._subjects.fired_of_run(run))


def schedule(due_ms: int, target: str) -> dict[str, str]:
    """Return the headers that make a message one that is published to ``target`` at a time."""
    due = datetime.fromtimestamp(due_ms / 1000, UTC)
    return {
        "Nats-Schedule": f"@at {due.strftime('%Y-%m-%dT%H:%M:%S.%fZ')}",
        "Nats-Schedule-Target": target,
    }
