"""What a run that was forked takes over of another one, written where an engine keeps such things.

    request(fork) ──> registers that hold Ended, one for each step it keeps ──> the run's document

The copies are events of the run's own log, named by its request, so that whoever handles the
request, for the first time or the tenth, writes the same. The registers come before the document:
one that is stored names nothing that is not there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import TypeVar

import msgspec

from treadle.engine.core.forking import Taken, entries_of
from treadle.engine.core.moment import Moment
from treadle.engine.registers import Registers
from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import InvariantError
from treadle.sdk.messages import (
    Checkpoint,
    Ended,
    Event,
    Fork,
    OutcomeKept,
    RecordKept,
    RunRequested,
    StepGiven,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects

_PARALLEL = 32
"""Copies read and written at once: enough to hide the round trip of each."""

T = TypeVar("T", OutcomeKept, StepGiven, RecordKept)
_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class Forks:
    """Takes over what the requests of forked runs name."""

    def __init__(self, js: JetStream, subjects: Subjects, registers: Registers) -> None:
        self._js = js
        self._subjects = subjects
        self._registers = registers

    async def is_first(self, moment: Moment) -> bool:
        """True if the request at this moment is the one that makes its run.

        Two requests of one id may keep other steps: only the first may write registers.
        """
        events = self._subjects.events_of_run(moment.run)
        async for stored in self._js.read(self._subjects.events_stream, events):
            if stored.sequence >= moment.sequence:
                break
            try:
                if isinstance(_event.decode(stored.data), RunRequested):
                    return False
            except (ValueError, RecursionError):
                continue
        return True

    async def take_over(self, fork: Fork, run: str, domain: str) -> dict[str, Taken]:
        """Write the ended registers of the steps that are kept; return how each ended."""
        gate = asyncio.Semaphore(_PARALLEL)

        async def take(step_id: str, sequence: int) -> Taken:
            async with gate:
                kept = await self._read(sequence, OutcomeKept)
                if not kept.type:
                    return Taken(kept)
                address = RegisterAddress(domain, run, step_id, kept.type)
                placed = await self._registers.create(address, _ended(kept, sequence))
                self._registers.forget(address)
                failpoints.reach("engine.step-taken-over")
                return Taken(kept, placed.sequence)

        kept = await asyncio.gather(*(take(*item) for item in fork.kept.items()))
        return dict(zip(fork.kept, kept, strict=True))

    async def given(self, sequence: int) -> StepGiven:
        """Return what a step begins with."""
        return await self._read(sequence, StepGiven)

    async def restore(self, address: RegisterAddress, sequence: int, given: StepGiven) -> int:
        """Write the checkpoint and the journal that a step begins with; return the newest of them.

        0 is none. Before its register exists nobody else writes under the step.
        """
        head = 0
        for number, record in enumerate(given.records):
            kept = await self._read(record, RecordKept)
            subject = self._subjects.record(address.run, address.step, number, address.domain)
            head = await self._write(address, subject, bytes(kept.record), head)
            failpoints.reach("engine.record-taken-over")
        if bytes(given.checkpoint) != b"null":
            checkpoint = Checkpoint(
                iteration=given.saved_at,
                attempt=1,
                token=0,
                nonce=f"e{sequence}",
                state=given.checkpoint,
            )
            subject = self._subjects.checkpoint(address.run, address.step, address.domain)
            head = await self._write(address, subject, msgspec.json.encode(checkpoint), head)
        return head

    async def _write(self, address: RegisterAddress, subject: str, data: bytes, head: int) -> int:
        result = await self._js.compare_and_set(
            self._subjects.steps_stream,
            subject,
            data,
            expected=head,
            filter=self._subjects.pair(address.run, address.step, address.domain),
            is_mine=lambda stored: stored == data,
        )
        if result.stored is not None:
            return result.stored.sequence
        # Another engine writes the same, or has, and is ahead.
        return result.newest

    async def _read(self, sequence: int, kind: type[T]) -> T:
        stored = await self._js.get(self._subjects.events_stream, sequence)
        event = read(_event, stored) if stored is not None else None
        if not isinstance(event, kind):
            raise InvariantError(f"event {sequence} of the run's log is no {kind.__name__}")
        return event


def _ended(kept: OutcomeKept, sequence: int) -> Ended:
    return Ended(
        parent=f"e{sequence}",
        outcome="failed" if kept.outcome == "failed" else "completed",
        iterations=kept.iterations,
        output=kept.output,
        failure=kept.failure,
        started_ms=kept.started_ms,
        ended_ms=kept.ended_ms,
    )


def planned(
    event: RunRequested, fork: Fork, kept: Mapping[str, Taken], moment: Moment, domain: str
) -> RunDocument:
    """Return a document that says what was planned in a run that is to be."""
    steps = entries_of(fork, kept)
    return RunDocument(
        run=moment.run,
        workflow=event.workflow,
        definition=event.definition,
        domain=domain,
        steps=steps,
    )
