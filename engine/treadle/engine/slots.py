"""Slots on JetStream: the records of concurrency limits, changed by compare-and-set.

What one engine has to say about a limit is put together: while a write is under way, what comes
next waits for it and goes into one write. A write that frees a slot grants it in the same write;
whoever waits has stored a waiter before it says so in the record, so a free slot and a waiter
always meet: one of the two writes sees the other.

    enter ──free──> held
          └─full──> store the waiter ──> note its line ──> wait until it is granted
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable
from typing import Any, NamedTuple

import msgspec

from treadle.engine.core import slots
from treadle.engine.core.flow import line_of
from treadle.engine.core.slots import LINES_MAX, Entry
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream, Refused, Stored
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.flow import PRIORITY_MAX
from treadle.sdk.messages import Queued, SlotClaim, SlotRecord, SlotWaiter
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects

RECORDS_MAX = 10_000
"""Records an engine remembers; the others are read when they are needed."""
TRIES_MAX = 200
_RETRY_S = 0.005

_record = msgspec.json.Decoder(SlotRecord)
_waiter = msgspec.json.Decoder(SlotWaiter)

Op = Callable[[SlotRecord], "tuple[SlotRecord, Any]"]


class Kept(NamedTuple):
    """A record as it stands; revision 0 is none."""

    record: SlotRecord
    revision: int
    time_ms: int = 0


class Granted(NamedTuple):
    """A waiter that was given a slot, and where it is stored."""

    limit: str
    waiter: SlotWaiter
    subject: str
    sequence: int


class Slots:
    """The concurrency limits of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._kept: OrderedDict[str, Kept] = OrderedDict()
        self._pending: dict[str, list[tuple[Op, asyncio.Future[Any]]]] = {}
        self._committing: set[asyncio.Task[None]] = set()
        self.on_granted: Callable[[Granted], None] = lambda _: None
        """Called with everybody who got a slot because another one left it."""

    # ---------------------------------------------------------------- what registers ask

    async def enter(
        self, claim: SlotClaim, address: RegisterAddress, token: int, queued: Queued
    ) -> Entry:
        """Take a slot for a queued register; ``full`` says that it waits for one from now on."""
        name = address_name(address)

        def enter(record: SlotRecord) -> tuple[SlotRecord, Entry]:
            return slots.enter(_labelled(record, claim), name, token, claim.limit, _now_ms())

        entry: Entry = await self._apply(claim.key, enter)
        if entry != "full":
            return entry
        failpoints.reach("engine.slot-missed")
        waiter = await self._wait(claim, address, token, queued)
        failpoints.reach("engine.waiter-stored")

        def queue(record: SlotRecord) -> tuple[SlotRecord, None]:
            return slots.queue(_labelled(record, claim), waiter, claim.limit), None

        # If a slot has become free meanwhile, it is granted like to anybody who waits.
        await self._apply(claim.key, queue)
        failpoints.reach("engine.waiter-noted")
        return "full"

    async def leave(self, limits: tuple[str, ...], address: RegisterAddress, below: int) -> None:
        """Free what a register took at earlier tokens, in each of the limits."""
        name = address_name(address)

        def leave(record: SlotRecord) -> tuple[SlotRecord, None]:
            return slots.leave(record, name, below), None

        await asyncio.gather(*(self._apply(limit, leave) for limit in limits))

    async def settle(self, limit: str) -> None:
        """Give free slots of a limit to those who wait."""
        self._kept.pop(limit, None)
        await self._apply(limit, lambda record: (record, None))

    # ---------------------------------------------------------------- waiters

    async def _wait(
        self, claim: SlotClaim, address: RegisterAddress, token: int, queued: Queued
    ) -> SlotWaiter:
        flow = queued.task.flow
        assert flow is not None
        line = line_of(flow)
        kept = self._kept.get(claim.key)
        lines = kept.record.lines if kept else {}
        if line not in lines and len(lines) >= LINES_MAX:
            line = f"{flow.priority + PRIORITY_MAX:03d}-x"
        waiter = SlotWaiter(
            address=address_name(address),
            token=token,
            line=line,
            priority=flow.priority,
            fair=flow.fair[:100],
            weight=flow.weight,
            since_ms=queued.since_ms,
        )
        subject = self._subjects.slot_waiter(claim.key, line, address, token)
        await self._create(subject, msgspec.json.encode(waiter))
        return waiter

    async def _create(self, subject: str, data: bytes) -> None:
        """Store a waiter unless it is there: it keeps its place."""
        while True:
            try:
                answer = await self._js.attempt(subject, data, expected=0)
            except Unknown:
                await asyncio.sleep(_RETRY_S)
                continue
            if isinstance(answer, Refused) and answer.transient:
                await asyncio.sleep(_RETRY_S)
                continue
            return

    async def forget(self, waiting: Granted) -> None:
        """Delete a waiter whose register has moved on."""
        stream = self._subjects.limits_stream
        await self._js.purge(stream, waiting.subject, up_to=waiting.sequence + 1)

    async def waiting(self, limit: str, sequence: int) -> Granted | None:
        """Return the waiter stored at a sequence; None if it is gone."""
        stored = await self._js.get(self._subjects.limits_stream, sequence)
        return self._granted(limit, stored) if stored is not None and stored.data else None

    async def waiters(self, start: int) -> AsyncIterator[Granted]:
        """Yield everybody who waits, from a sequence on."""
        s = self._subjects
        async for stored in self._js.read(s.limits_stream, s.all_slot_waiters, start=start):
            try:
                yield self._granted(s.parse_limit(stored.subject), stored)
            except StoredUnreadable:
                await self._js.purge(s.limits_stream, stored.subject, up_to=stored.sequence + 1)

    def _granted(self, limit: str, stored: Stored) -> Granted:
        return Granted(limit, read(_waiter, stored), stored.subject, stored.sequence)

    # ---------------------------------------------------------------- records

    async def records(self) -> AsyncIterator[tuple[str, Kept | StoredUnreadable]]:
        """Yield every record with its limit's key, and what cannot be read in its place."""
        s = self._subjects
        async for stored in self._js.read(s.limits_stream, s.all_slots):
            try:
                kept = Kept(read(_record, stored), stored.sequence, stored.time_ms)
            except StoredUnreadable as exc:
                yield s.parse_limit(stored.subject), exc
            else:
                yield s.parse_limit(stored.subject), kept

    async def replace(self, limit: str, record: SlotRecord, revision: int) -> bool:
        """Store a record over one that cannot be read; False if it has changed."""
        self._kept.pop(limit, None)
        return await self._put(limit, record, revision) is not None

    async def drop(self, limit: str, kept: Kept) -> None:
        """Delete the record of a limit that nobody uses."""
        s = self._subjects
        self._kept.pop(limit, None)
        await self._js.purge(s.limits_stream, s.slots(limit), up_to=kept.revision + 1)

    async def _apply(self, limit: str, op: Op) -> Any:
        """Apply a change to a record, together with what else is asked of it meanwhile."""
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        pending = self._pending.get(limit)
        if pending is not None:
            pending.append((op, future))
        else:
            self._pending[limit] = [(op, future)]
            task = asyncio.create_task(self._commit_all(limit))
            self._committing.add(task)
            task.add_done_callback(self._committing.discard)
        return await future

    async def _commit_all(self, limit: str) -> None:
        while batch := self._pending[limit]:
            self._pending[limit] = []
            try:
                results = await self._commit(limit, [op for op, _ in batch])
            except Exception as exc:  # noqa: BLE001 — whoever asked is told
                for _, future in batch:
                    if not future.done():
                        future.set_exception(exc)
                continue
            for (_, future), result in zip(batch, results, strict=True):
                if not future.done():
                    future.set_result(result)
        del self._pending[limit]

    async def _commit(self, limit: str, ops: list[Op]) -> list[Any]:
        kept, is_fresh = self._kept.get(limit), False
        for _ in range(TRIES_MAX):
            if kept is None:
                kept, is_fresh = await self._read(limit), True
            record = kept.record
            results: list[Any] = []
            for op in ops:
                record, result = op(record)
                results.append(result)
            record, granted = await self._granting(limit, record)
            if record == kept.record:
                if is_fresh:
                    self._keep(limit, kept)
                    return results
                # "It changes nothing" has to be true of the record as it stands.
                kept = None
                continue
            failpoints.reach("engine.slots-decided")
            stored = await self._put(limit, record, kept.revision)
            if stored is None:
                self._kept.pop(limit, None)
                kept = None
                continue
            self._keep(limit, stored)
            failpoints.reach("engine.slots-stored")
            for each in granted:
                self.on_granted(each)
            return results
        raise Unknown(f"the record of limit {limit!r} was refused {TRIES_MAX} times")

    async def _granting(self, limit: str, record: SlotRecord) -> tuple[SlotRecord, list[Granted]]:
        """Give the free slots of a record to those whose turn it is."""
        granted: list[Granted] = []
        s = self._subjects
        while (line := slots.next_line(record)) is not None:
            filter = s.slot_waiters_of_line(limit, line)
            stored = await self._js.next(s.limits_stream, filter, record.lines[line].after + 1)
            if stored is None:
                record, _ = slots.grant(record, line, None, 0, 0)
                continue
            try:
                head = self._granted(limit, stored)
            except StoredUnreadable:
                await self._js.purge(s.limits_stream, stored.subject, up_to=stored.sequence + 1)
                continue
            record, is_new = slots.grant(record, line, head.waiter, head.sequence, _now_ms())
            if is_new:
                granted.append(head)
        return record, granted

    async def _read(self, limit: str) -> Kept:
        s = self._subjects
        stored = await self._js.last(s.limits_stream, s.slots(limit))
        if stored is None:
            return Kept(SlotRecord(), 0)
        return Kept(read(_record, stored), stored.sequence, stored.time_ms)

    async def _put(self, limit: str, record: SlotRecord, revision: int) -> Kept | None:
        """Store a record over the one that was read; None if it is not certain that it stands."""
        data = msgspec.json.encode(record)
        try:
            answer = await self._js.attempt(self._subjects.slots(limit), data, expected=revision)
        except Unknown:
            # If it was stored, every change is found made, and the sweep finishes the grants.
            await asyncio.sleep(_RETRY_S)
            return None
        if isinstance(answer, Refused):
            if answer.transient:
                await asyncio.sleep(_RETRY_S)
            return None
        return Kept(record, answer)

    def _keep(self, limit: str, kept: Kept) -> None:
        self._kept[limit] = kept
        self._kept.move_to_end(limit)
        if len(self._kept) > RECORDS_MAX:
            self._kept.popitem(last=False)


def address_name(address: RegisterAddress) -> str:
    """Return how records name a register."""
    return f"{address.domain}.{address.run}.{address.step}.{address.type}"


def address_of(name: str) -> RegisterAddress:
    """Return the register of that name."""
    return RegisterAddress(*name.split("."))


def _labelled(record: SlotRecord, claim: SlotClaim) -> SlotRecord:
    if record.label == claim.label:
        return record
    return msgspec.structs.replace(record, label=claim.label)


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
