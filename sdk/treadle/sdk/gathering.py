"""The output of a map, put together from where its chunks left it.

Each result is stored once, in the ended register of its chunk or in a record of the chunk's
journal. Whoever needs the whole list reads these; nobody writes it again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import InvariantError, ServerUnavailable, TreadleError
from treadle.sdk.messages import (
    ChunkDone,
    Ended,
    ItemFailure,
    MapOutput,
    Register,
    Results,
)
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects, chunk_id

READS_AT_ONCE_MAX = 32
"""Enough to hide the round trips, without flooding the connection."""
SINGLE_READS_MAX = 64
"""Chunks up to this many are asked for one by one; more are read in bulk first."""

_registers: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
_results = msgspec.json.Decoder(Results)


class _Record(msgspec.Struct, frozen=True):
    """What the record of a journal has for readers."""

    body: msgspec.Raw


_records = msgspec.json.Decoder(_Record)


class Part(NamedTuple):
    """What one chunk left: its ended register, and the bodies of the records with results."""

    ended: Ended
    records: Sequence[bytes | msgspec.Raw] = ()


def gather(parts: Iterable[Part], output: MapOutput) -> bytes:
    """Return the output of a map as JSON; raise ``InvariantError`` if an item is missing."""
    pieces: list[bytes] = []
    failures: list[ItemFailure] = []
    count = 0
    for part in parts:
        done = part.ended.chunk
        assert done is not None, "only a chunk that is over is part of an output"
        count += done.count
        piece = _piece(part, done, failures)
        if piece:
            pieces.append(piece)
    if count != output.items:
        raise InvariantError(f"a map of {output.items} items has results of {count}")
    results = b"[" + b",".join(pieces) + b"]"
    if not output.with_failures:
        return results
    return b'{"results":%b,"failures":%b}' % (results, msgspec.json.encode(failures))


def _piece(part: Part, done: ChunkDone, failures: list[ItemFailure]) -> bytes:
    """Return a chunk's results, separated by commas, and note its failures."""
    if part.ended.outcome == "failed":
        cause = part.ended.failure
        type_, message = (cause.type, cause.message) if cause else ("unknown", "")
        indices = range(done.first, done.first + done.count)
        failures.extend(ItemFailure(index, type_, message) for index in indices)
        return b",".join([b"null"] * done.count)
    whole = bytes(part.ended.output)
    if whole.startswith(b"["):
        return whole[1:-1].strip()
    values: dict[int, bytes] = {}
    for raw in (*part.records, part.ended.output):
        told = _results.decode(raw)
        values.update((index, bytes(value)) for index, value in told.results)
        failures.extend(told.failures)
        values.update((failure.index, b"null") for failure in told.failures)
    if len(values) != done.count:
        raise InvariantError(f"a chunk of {done.count} items has results of {len(values)}")
    return b",".join(values[index] for index in sorted(values))


class Gatherer:
    """Reads the outputs of maps."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._gate = asyncio.Semaphore(READS_AT_ONCE_MAX)

    async def output(self, map_: RegisterAddress, output: MapOutput) -> bytes:
        """Return the output of a completed map; ``map_`` names the step and its task type.

        Raise ``InvariantError`` if a part is gone, ``ServerUnavailable`` if a server is behind.
        """
        names = [chunk_id(map_.step, number) for number in range(output.chunks)]
        known = await self._in_bulk(map_) if output.chunks > SINGLE_READS_MAX else {}
        tasks = (self._part(map_, name, known.get(name)) for name in names)
        return gather(await asyncio.gather(*tasks), output)

    async def failures(
        self, map_: RegisterAddress, over: Sequence[int], most: int
    ) -> list[ItemFailure]:
        """Return the first failed items of these chunks, which are over, in order; at most so many.

        Raise ``InvariantError`` if a part is gone, ``ServerUnavailable`` if a server is behind.
        """
        found: list[ItemFailure] = []
        for start in range(0, len(over), READS_AT_ONCE_MAX):
            numbers = over[start : start + READS_AT_ONCE_MAX]
            parts = (self._failed_part(map_, chunk_id(map_.step, number)) for number in numbers)
            for part in await asyncio.gather(*parts):
                if part is not None and part.ended.chunk is not None:
                    _piece(part, part.ended.chunk, found)
            if len(found) >= most:
                break
        return sorted(found, key=lambda failure: failure.index)[:most]

    async def _failed_part(self, map_: RegisterAddress, name: str) -> Part | None:
        """Return what a chunk left, if items of it have failed."""
        ended = await self._ended(map_, name)
        has_failed = ended.chunk is not None and ended.chunk.failed > 0
        return await self._part(map_, name, ended) if has_failed else None

    async def _in_bulk(self, map_: RegisterAddress) -> dict[str, Ended]:
        """Return the chunks that have ended, as far as the server that answers knows."""
        s = self._subjects
        known: dict[str, Ended] = {}
        filter_ = s.registers_of_run(map_.run, map_.type, map_.domain)
        async for stored in self._js.read(s.steps_stream, filter_):
            name = s.parse_register(stored.subject).step
            if name.startswith(chunk_id(map_.step, 0)[:-1]):
                register = read(_registers, stored)
                if isinstance(register, Ended):
                    known[name] = register
        return known

    async def _part(self, map_: RegisterAddress, name: str, known: Ended | None) -> Part:
        ended = known or await self._ended(map_, name)
        records = ended.chunk.records if ended.chunk else 0
        bodies = (self._record(map_, name, number) for number in range(records))
        return Part(ended, await asyncio.gather(*bodies))

    async def _ended(self, map_: RegisterAddress, name: str) -> Ended:
        s = self._subjects
        subject = s.register(map_.run, name, map_.type, map_.domain)
        async with self._gate:
            stored = await self._js.last(s.steps_stream, subject)
        if stored is None:
            raise _gone(name, map_)
        register = read(_registers, stored)
        if not isinstance(register, Ended):
            # It is asked for because it has ended: the server that answered is behind.
            raise ServerUnavailable(
                f"chunk {name!r} is shown as not ended by a server that is behind the others. "
                "It is asked again."
            )
        return register

    async def _record(self, map_: RegisterAddress, name: str, number: int) -> bytes:
        s = self._subjects
        async with self._gate:
            stored = await self._js.last(
                s.steps_stream, s.record(map_.run, name, number, map_.domain)
            )
        if stored is None:
            raise _gone(name, map_)
        return bytes(read(_records, stored).body)


def _gone(name: str, map_: RegisterAddress) -> TreadleError:
    return InvariantError(f"run {map_.run!r}: chunk {name!r} is over, and its results are gone")
