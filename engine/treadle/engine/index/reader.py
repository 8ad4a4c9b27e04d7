"""Keeps the table what the bucket of the runs is: reads it once, then reads on.

    put, rewritten   a message behind the position: read on
    purged           no message at all: the stream has fewer messages than the table has keys, and a
                     second look from the oldest finds which; retention takes the oldest
    begun anew       the stream ends before the position: everything is read again

A rewritten document moves to the end of the stream, so what is read in order misses none.
"""

from __future__ import annotations

import asyncio
import time

from treadle.engine.index.table import Table
from treadle.sdk.bus.acks import Stored
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.listing.facts import Facts, facts_of
from treadle.sdk.subjects import Subjects

PUT_MAX = 500
"""Documents taken before others may work."""


class Outdated(Exception):
    """The stream is not the one that the table was read from."""


class Reader:
    """Reads the bucket of the runs into a table."""

    def __init__(self, js: JetStream, subjects: Subjects, table: Table) -> None:
        self._js = js
        self._subjects = subjects
        self._table = table
        self._reading = asyncio.Lock()

    async def read_on(self) -> None:
        """Take everything that is stored."""
        async with self._reading:
            await self._read_on()

    async def read_to(self, sequence: int, within_s: float) -> None:
        """Read on until everything up to a sequence is taken; give up after a time."""
        deadline = time.monotonic() + within_s
        while self._table.position < sequence and time.monotonic() < deadline:
            async with self._reading:
                if self._table.position < sequence:
                    await self._read_on()
                if self._table.position < sequence:
                    await self._pass_deleted(sequence)

    async def _pass_deleted(self, sequence: int) -> None:
        """Move the position over what is deleted already; a replica may only be late."""
        s, last = self._subjects, (await self._state())["last_seq"]
        following = await self._js.next(s.runs_stream, s.all_runs, self._table.position + 1)
        if following is None:
            self._table.position = max(self._table.position, min(sequence, last))

    async def _read_on(self) -> None:
        s = self._subjects
        taken: dict[str, Stored] = {}
        async for stored in self._js.read(
            s.runs_stream, s.all_runs, start=self._table.position + 1
        ):
            taken[s.parse_run_document(stored.subject)] = stored
            if len(taken) >= PUT_MAX:
                self._take(taken)
                taken = {}
                await asyncio.sleep(0)
        self._take(taken)

    def _take(self, taken: dict[str, Stored]) -> None:
        if taken:
            self._table.put(
                (key, stored.sequence, _facts(key, stored)) for key, stored in taken.items()
            )

    async def compare(self) -> int:
        """Forget the runs that are gone; return how many. Raise ``Outdated``."""
        state = await self._state()
        if state["last_seq"] < self._table.position:
            raise Outdated
        missing = self._table.count_first_seen(state["last_seq"]) - state["messages"]
        if missing <= 0:
            return 0
        count = 0
        for rows in await self._suspected(missing):
            gone = await asyncio.gather(*(self._is_gone(key) for key in rows))
            count += self._table.remove(
                (key, rows[key]) for key, is_gone in zip(rows, gone, strict=True) if is_gone
            )
        return count

    async def _suspected(self, missing: int) -> list[dict[str, int]]:
        """Go through the stream and the table side by side; return keys that only this one has.

        With their sequences there. One may have been rewritten meanwhile.
        """
        s, found, at, end = self._subjects, list[dict[str, int]](), 0, self._table.position
        count = 0
        present: set[int] = set()
        async for stored in self._js.read(s.runs_stream, s.all_runs):
            present.add(stored.sequence)
            if len(present) >= PUT_MAX or stored.sequence >= end:
                found.append(self._absent(at, min(stored.sequence, end), present))
                count += len(found[-1])
                at = stored.sequence
                present.clear()
                if count >= missing or at >= end:
                    return found
        return [*found, self._absent(at, end, present)]

    def _absent(self, after: int, up_to: int, present: set[int]) -> dict[str, int]:
        rows = self._table.between(after, up_to)
        return {key: sequence for key, sequence in rows.items() if sequence not in present}

    async def _is_gone(self, key: str) -> bool:
        s = self._subjects
        return await self._js.last(s.runs_stream, s.run_document(key)) is None

    async def _state(self) -> dict[str, int]:
        info = await self._js.api(f"STREAM.INFO.{self._subjects.runs_stream}")
        return {name: int(info["state"][name]) for name in ("last_seq", "messages")}


def _facts(key: str, stored: Stored) -> Facts | None:
    return facts_of(key, stored) if stored.data else None
