"""The journal of a run and the state it folds to, moved together.

    RunLedger ──────> the journal
       ^  one state, one order of entries, one lock
    NestedLedger      a sub-agent's view: what it appends is wrapped, its state is the child's

A sub-agent has no journal and no state of its own, so nothing can drift apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Protocol

from treadle.worker.agent.core import nested
from treadle.worker.agent.core.entries import Entry, Kept, innermost, is_durable
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.ports import Journal


class Ledger(Protocol):
    """What a driver writes to and reads from."""

    @property
    def state(self) -> State:
        """The fold of all that was appended."""
        ...

    async def append(self, entries: Sequence[Entry]) -> None:
        """Apply the entries; store them if one of them has to be, with those that wait."""
        ...

    async def flush(self) -> None:
        """Store what waits."""
        ...


class RunLedger:
    """The ledger of a whole run."""

    def __init__(self, state: State, journal: Journal) -> None:
        self.state = state
        self._journal = journal
        self._unstored: list[Entry] = []
        self._lock = asyncio.Lock()

    async def append(self, entries: Sequence[Entry]) -> None:
        """Apply the entries, in one go and at once; return when what has to be stored is."""
        self.state = fold(self.state, entries)
        self._unstored.extend(entries)
        if any(map(is_durable, entries)):
            await self.flush()

    async def flush(self) -> None:
        """Store what waits, in the order in which it was applied."""
        async with self._lock:
            waiting = tuple(self._unstored)
            for record in _records(waiting):
                await self._write(record)

    async def _write(self, waiting: tuple[Entry, ...]) -> None:
        # Whoever cancels waits for a write that is under way: cut in the middle, nobody would
        # know whether it stands, and the record after it would be refused.
        write = asyncio.ensure_future(self._journal.append(waiting))
        try:
            await asyncio.shield(write)
        except asyncio.CancelledError:
            await asyncio.wait({write})
            if not write.cancelled() and write.exception() is None:
                del self._unstored[: len(waiting)]
            raise
        del self._unstored[: len(waiting)]


def _records(entries: Sequence[Entry]) -> list[tuple[Entry, ...]]:
    """Return the entries as one record; a part of a kept output is one of its own."""
    records: list[tuple[Entry, ...]] = []
    is_open = False
    for entry in entries:
        is_part = isinstance(innermost(entry), Kept)
        if is_open and not is_part:
            records[-1] = (*records[-1], entry)
        else:
            records.append((entry,))
        is_open = not is_part
    return records


class NestedLedger:
    """The part of a ledger that is about the sub-agent of one call."""

    def __init__(self, outer: Ledger, call_id: str) -> None:
        self._outer = outer
        self._call_id = call_id

    @property
    def state(self) -> State:
        """The sub-agent's state; an empty one when its call has ended."""
        return self._outer.state.children.get(self._call_id, State())

    async def append(self, entries: Sequence[Entry]) -> None:
        """Append the entries as the sub-agent's."""
        await self._outer.append(nested.wrapped(self._call_id, entries))

    async def flush(self) -> None:
        """Store what waits."""
        await self._outer.flush()
