"""What only time can tell of slots: grants that nobody finished, holders that are gone.

Every engine looks through the records about once a second; one with nothing limited reads one empty
stream. Nothing here is needed as long as nobody dies: an engine that is killed leaves

    a grant without its task      the waiter still stands: the grant is finished
    a holder that has moved on    its register says so: the slot is free
    a free slot, somebody waits   it is granted
    a waiter in no line           its register is looked at, and it waits again or goes
    a record that was garbled     it is made anew from the registers
"""

from __future__ import annotations

import logging
import time

import msgspec

from treadle.engine.admission import Admission
from treadle.engine.core import slots as core
from treadle.engine.core.advance import Placed
from treadle.engine.core.flow import slots_of
from treadle.engine.recurring import sweep_every
from treadle.engine.slots import Granted, Kept, address_name, address_of
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.log_fields import spaced
from treadle.sdk.messages import Holder, Queued, Register, SlotRecord, Task
from treadle.sdk.stored import read
from treadle.sdk.subjects import RegisterAddress, Subjects

SWEEP_S = 1.0
LOOK_AFTER_MS = 1_500
"""A holder so old is looked at once by each engine: what takes it on has had the time."""
LOOK_AGAIN_S = 10.0
GONE_MS = 60_000
"""A register that is not there so long after it took a slot was deleted; earlier, a deposed leader
may have answered."""
IDLE_MS = 60_000
WAITERS_EVERY_S = 20.0
WAITERS_SWEPT_MAX = 2_000
"""Waiters of one sweep; the next one goes on behind them."""

_log = logging.getLogger("treadle.engine")
_register: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)


class SlotSweep:
    """Looks after the concurrency limits of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects, admission: Admission) -> None:
        self._js = js
        self._subjects = subjects
        self._admission = admission
        self._slots = admission.slots
        self._looked: dict[tuple[str, str, int], float] = {}
        """When holders were found to be right: by limit, address and token."""
        self._waiters_at = 0.0
        self._swept = 0

    async def run(self) -> None:
        """Sweep about once a second, until cancelled."""
        await sweep_every(
            SWEEP_S, lambda: self.sweep(time.time_ns() // 1_000_000), "engine.slot-sweep-failed %r"
        )

    async def sweep(self, now_ms: int) -> None:
        """Look through all records once, and now and then through those who wait."""
        records = [each async for each in self._slots.records()]
        standing: set[tuple[str, str, int]] = set()
        for limit, kept in records:
            try:
                if isinstance(kept, StoredUnreadable):
                    await self._rebuild(limit, kept.revision)
                    continue
                standing |= {(limit, h.address, h.token) for h in kept.record.holders}
                await self._look_after(limit, kept, now_ms)
            except Exception as exc:  # noqa: BLE001 — one limit must not stop the sweep
                extra = {"limit": limit, "error": repr(exc)}
                _log.warning("engine.limit-dispatch-failed %s", spaced(extra), extra=extra)
        self._looked = {key: at for key, at in self._looked.items() if key in standing}
        if time.monotonic() - self._waiters_at >= WAITERS_EVERY_S:
            self._waiters_at = time.monotonic()
            await self._look_after_waiters(now_ms)

    async def _look_after(self, limit: str, kept: Kept, now_ms: int) -> None:
        record = kept.record
        if core.is_idle(record):
            if kept.time_ms < now_ms - IDLE_MS:
                await self._slots.drop(limit, kept)
            return
        for holder in record.holders:
            if holder.since_ms <= now_ms - LOOK_AFTER_MS:
                await self._look_at(limit, holder, now_ms)
        if record.lines and len(record.holders) < record.limit:
            await self._slots.settle(limit)

    async def _look_at(self, limit: str, holder: Holder, now_ms: int) -> None:
        key = (limit, holder.address, holder.token)
        if time.monotonic() - self._looked.get(key, -LOOK_AGAIN_S) < LOOK_AGAIN_S:
            return
        address = address_of(holder.address)
        waiting = await self._slots.waiting(limit, holder.waiter) if holder.waiter else None
        if waiting is not None and waiting.waiter.token == holder.token:
            await self._admission.finish(waiting)
        if await self._admission.look(limit, address, holder.token):
            self._looked[key] = time.monotonic()
        elif holder.since_ms < now_ms - GONE_MS and await self._is_gone(address):
            await self._slots.leave((limit,), address, holder.token + 1)

    async def _is_gone(self, address: RegisterAddress) -> bool:
        s = self._subjects
        subject = s.register(address.run, address.step, address.type, address.domain)
        return await self._js.last(s.steps_stream, subject) is None

    # ---------------------------------------------------------------- waiters

    async def _look_after_waiters(self, now_ms: int) -> None:
        """Find those who wait in no line: their engine died, or the record was garbled."""
        start, self._swept = self._swept + 1, 0
        records = {
            limit: kept.record
            async for limit, kept in self._slots.records()
            if isinstance(kept, Kept)
        }
        count = 0
        async for waiting in self._slots.waiters(start):
            count += 1
            if waiting.waiter.since_ms < now_ms - LOOK_AFTER_MS and _is_astray(waiting, records):
                await self._call_back(waiting)
            if count == WAITERS_SWEPT_MAX:
                self._swept = waiting.sequence
                return

    async def _call_back(self, waiting: Granted) -> None:
        address, token = address_of(waiting.waiter.address), waiting.waiter.token
        await self._admission.look(waiting.limit, address, token)
        s = self._subjects
        subject = s.register(address.run, address.step, address.type, address.domain)
        stored = await self._js.last(s.steps_stream, subject)
        if stored is None or stored.sequence != token:
            await self._slots.forget(waiting)

    # ---------------------------------------------------------------- damage

    async def _rebuild(self, limit: str, revision: int) -> None:
        """Make a record anew from the registers that hold one of its slots."""
        s = self._subjects
        holders: list[Holder] = []
        found = SlotRecord()
        async for stored in self._js.read(s.steps_stream, s.all_steps):
            try:
                address = s.parse_register(stored.subject)
                placed = Placed(stored.sequence, read(_register, stored))
            except (ValueError, StoredUnreadable):
                continue
            register = placed.register
            if not isinstance(register, Task | Queued) or limit not in slots_of(register):
                continue
            task = register if isinstance(register, Task) else register.task
            assert task.flow is not None
            claim = next(each for each in task.flow.slots if each.key == limit)
            found = SlotRecord(label=claim.label, limit=claim.limit)
            if isinstance(register, Task):
                holders.append(Holder(address_name(address), register.claim))
        record = msgspec.structs.replace(found, holders=tuple(holders))
        if await self._slots.replace(limit, record, revision):
            extra = {"limit": found.label or limit, "holders": len(holders)}
            _log.warning("engine.limit-rebuilt %s", spaced(extra), extra=extra)


def _is_astray(waiting: Granted, records: dict[str, SlotRecord]) -> bool:
    record = records.get(waiting.limit)
    if record is None:
        return True
    line = record.lines.get(waiting.waiter.line)
    if line is not None and waiting.sequence > line.after:
        return False
    held = ((h.address, h.token) for h in record.holders)
    return (waiting.waiter.address, waiting.waiter.token) not in set(held)
