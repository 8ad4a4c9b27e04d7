"""Journals: records that a step appends beside its register, under the same fence.

    $KV.<bucket>.<domain>.<run>.<step>.j.<n>      n counts from 0, without a gap

Each record is a key of its own, so appending costs what is appended and not what is there. It is
written like a checkpoint: naming the newest sequence of the step that its execution knows, so an
execution that was overtaken can add nothing. Reading asks the leader for the newest record and
then takes all before it: what came in bulk is complete only if no number is missing.
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.retrying import BUDGET_S, Backoff
from treadle.sdk.bus.wire import Unknown
from treadle.sdk.ids import new_nonce
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects
from treadle.worker.checkpoints import SAVE_BUDGET_S
from treadle.worker.execution import Fenced, Record
from treadle.worker.held import HeldTask


class JournalStore:
    """Appends to and reads the journals of the tasks this process holds."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._encode = msgspec.json.Encoder().encode
        self._decoder = msgspec.json.Decoder(Record)

    async def append(self, held: HeldTask, number: int, body: bytes) -> int:
        """Store record ``number`` and return its sequence; raise ``Fenced`` if it may not be.

        Raise ``ServerUnavailable`` when it stays unknown whether it is stored.
        """
        if held.saving is None:
            held.saving = asyncio.Lock()
        async with held.saving:
            failpoints.reach("worker.record-before")
            record = Record(
                token=held.token,
                iteration=held.task.iteration,
                attempt=held.task.attempt,
                nonce=new_nonce(),
                body=msgspec.Raw(body),
            )
            address = held.address
            result = await self._js.compare_and_set(
                self._subjects.steps_stream,
                self._subjects.record(address.run, address.step, number, address.domain),
                self._encode(record),
                expected=held.head,
                filter=self._subjects.pair(address.run, address.step, address.domain),
                is_mine=lambda data: self._is_written_as(data, record.nonce),
                budget_s=SAVE_BUDGET_S,
            )
            if result.stored is None:
                raise Fenced(
                    f"the step has moved on from sequence {held.head} to {result.newest}, so "
                    f"record {number} of its journal was refused"
                )
            held.head = result.stored.sequence
            failpoints.reach("worker.record-stored")
            return held.head

    async def read(self, held: HeldTask) -> list[Record]:
        """Return all records, in order.


        Raise ``Fenced`` if the newest was written for another task than the one held.
        """
        address, stream = held.address, self._subjects.steps_stream
        records = self._subjects.records(address.run, address.step, address.domain)
        newest = await self._js.last(stream, records)
        if newest is None:
            return []
        record = read(self._decoder, newest)
        if newest.sequence > held.token and record.token != held.token:
            raise Fenced(
                f"the journal's newest record was written for the task at {record.token}, and "
                f"this task is at {held.token}: the step has moved on"
            )
        held.head = max(held.head, newest.sequence)
        last = self._subjects.parse_record(newest.subject)
        backoff = Backoff(f"the journal of step {address.step!r}", BUDGET_S, verb="read")
        while True:
            found = {
                self._subjects.parse_record(stored.subject): read(self._decoder, stored)
                async for stored in self._js.read(stream, records)
            }
            found[last] = record
            if all(number in found for number in range(last + 1)):
                return [found[number] for number in range(last + 1)]
            await backoff.wait(Unknown("a replica that answered does not have all of it yet"))

    def _is_written_as(self, data: bytes, nonce: str) -> bool:
        try:
            return self._decoder.decode(data).nonce == nonce
        except (ValueError, RecursionError):
            return False
