"""The events of a simulated run: stored, and handled by an engine that may die amid it."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from treadle.engine.core import Moment
from treadle.sdk.messages import Event, TimerFired
from treadle.sdk.testing.boundaries import EngineDied, Side, Victim, Writer

Reach = Callable[[str, Writer, Side], Victim]


class Recorded(msgspec.Struct, frozen=True):
    """An event of the simulated history."""

    sequence: int
    time_ms: int
    event: Event


class EventLog:
    """The events, and those that no engine has acknowledged."""

    def __init__(
        self,
        run_id: str,
        now_ms: Callable[[], int],
        next_sequence: Callable[[], int],
        handle: Callable[[Event, Moment], None],
        reach: Reach,
        *,
        twice: bool,
    ) -> None:
        """``twice``: a verdict is stored twice, and every event is handled twice."""
        self._run_id = run_id
        self._now_ms = now_ms
        self._next_sequence = next_sequence
        self._handle = handle
        self._reach = reach
        self._twice = twice
        self._unacked: list[tuple[Event, Moment]] = []
        self.history: list[Recorded] = []

    def publish(self, event: Event, by_worker: str) -> None:
        """Store an event and handle it; ``by_worker`` is what it is if a worker stores it."""
        for _ in range(2 if self._twice and by_worker else 1):
            self._store(event)
        if by_worker:
            self._reach(by_worker, "worker", "after")
        while self._unacked:
            try:
                for _ in range(2 if self._twice else 1):
                    self._handle(*self._unacked[0])
                self._reach("acknowledgement of an event", "engine", "before")
            except EngineDied:
                continue  # The next one begins at what was not acked.
            self._unacked.pop(0)

    def _store(self, event: Event) -> None:
        sequence = self._next_sequence()
        letter = "t" if isinstance(event, TimerFired) else "e"
        moment = Moment(self._run_id, f"{letter}{sequence}", self._now_ms(), sequence)
        self.history.append(Recorded(sequence, moment.ms, event))
        self._unacked.append((event, moment))
