"""The limits of a namespace for people: who holds slots, how many wait, when a rate lets one begin.

For people, not for decisions: by the time one reads it, it may have moved.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterable

import msgspec

from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.flow import AGEING_MS
from treadle.sdk.messages import (
    Flow,
    Holder,
    Queued,
    RateRecord,
    SlotRecord,
    SlotWaiter,
)
from treadle.sdk.stored import read

WAITERS_COUNTED_MAX = 1_000
"""Waiters looked at before a queued step; of a longer queue only so much is told."""

_slots = msgspec.json.Decoder(SlotRecord)
_rates = msgspec.json.Decoder(RateRecord)
_waiter = msgspec.json.Decoder(SlotWaiter)


class SlotHolder(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who holds a slot."""

    run: str
    step: str
    since_ms: int


class LimitView(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One concurrency limit, or one rate limit, of one key."""

    key: str
    """Its key in the limits bucket."""
    label: str
    """What shares it, and the value of its key in brackets."""
    kind: str
    """``concurrency`` or ``rate``."""
    limit: int = 0
    """Slots, as whoever asked last has it; of a rate its burst."""
    holders: tuple[SlotHolder, ...] = ()
    waiting: int = 0
    interval_ms: float = 0
    """Of a rate: between two that begin, once its burst is used."""
    next_ms: int = 0
    """Of a rate: when the next may begin; 0 is at once."""


class Wait(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a queued step waits for."""

    label: str = ""
    limit: int = 0
    holders: tuple[SlotHolder, ...] = ()
    before: int = 0
    """Those who have their turn earlier, as things stand."""
    is_more: bool = False
    """There are more than were counted."""


async def limits_of(store: Store) -> list[LimitView]:
    """Return the limits that somebody uses, those with the most waiting first."""
    views = [each async for each in _concurrency(store)]
    views += [each async for each in _of_rates(store)]
    return sorted(views, key=lambda each: (-each.waiting, each.kind, each.label))


async def wait_of(store: Store, address: str, queued: Queued, token: int) -> Wait:
    """Return what a queued register waits for, and its place."""
    flow = queued.task.flow or Flow()
    for claim in flow.slots:
        record = await _record(store, claim.key)
        if any(h.address == address and h.token == token for h in record.holders):
            continue
        before, is_more = await _before(store, claim.key, record, address, token)
        return Wait(
            label=claim.label,
            limit=claim.limit,
            holders=_holders(record.holders),
            before=before,
            is_more=is_more,
        )
    return Wait()


async def _concurrency(store: Store) -> AsyncIterator[LimitView]:
    s = store.subjects
    async for stored in store.js.read(s.limits_stream, s.all_slots):
        key = s.parse_limit(stored.subject)
        try:
            record = read(_slots, stored)
        except StoredUnreadable:
            yield LimitView(key=key, label="unreadable, made anew in a moment", kind="concurrency")
            continue
        if not record.holders and not record.lines:
            continue
        yield LimitView(
            key=key,
            label=record.label,
            kind="concurrency",
            limit=record.limit,
            holders=_holders(record.holders),
            waiting=await waiting_of(store, key, record),
        )


async def waiting_of(store: Store, key: str, record: SlotRecord) -> int:
    """Return how many wait for a slot of a limit."""
    if not record.lines:
        return 0
    s = store.subjects
    return await store.js.count(s.limits_stream, s.slot_waiters_of_limit(key))


async def _of_rates(store: Store) -> AsyncIterator[LimitView]:
    s, now_us = store.subjects, time.time_ns() // 1_000
    async for stored in store.js.read(s.limits_stream, s.all_rates):
        try:
            record = read(_rates, stored)
        except StoredUnreadable:
            continue
        begins_us = record.next_us - (record.burst - 1) * record.interval_us
        if record.next_us > now_us:
            yield LimitView(
                key=s.parse_limit(stored.subject),
                label=record.label,
                kind="rate",
                limit=record.burst,
                interval_ms=record.interval_us / 1_000,
                next_ms=begins_us // 1_000 if begins_us > now_us else 0,
            )


async def _record(store: Store, key: str) -> SlotRecord:
    s = store.subjects
    stored = await store.js.last(s.limits_stream, s.slots(key))
    try:
        return read(_slots, stored) if stored is not None else SlotRecord()
    except StoredUnreadable:
        return SlotRecord()


async def _before(
    store: Store, key: str, record: SlotRecord, address: str, token: int
) -> tuple[int, bool]:
    """Return how many have their turn before a waiter; of other keys those who came earlier."""
    s = store.subjects
    waiting: list[SlotWaiter] = []
    own: SlotWaiter | None = None
    async for stored in store.js.read(s.limits_stream, s.slot_waiters_of_limit(key)):
        try:
            waiter = read(_waiter, stored)
        except StoredUnreadable:
            continue
        line = record.lines.get(waiter.line)
        if line is not None and stored.sequence <= line.after:
            continue
        if (waiter.address, waiter.token) == (address, token):
            own = waiter
        else:
            waiting.append(waiter)
        if len(waiting) > WAITERS_COUNTED_MAX:
            return WAITERS_COUNTED_MAX, True
    if own is None:
        return 0, False
    return sum(_rank(each) < _rank(own) for each in waiting), False


def _rank(waiter: SlotWaiter) -> int:
    """Return when a waiter would have come if its priority were that of all others."""
    return waiter.since_ms - waiter.priority * AGEING_MS


def _holders(holders: Iterable[Holder]) -> tuple[SlotHolder, ...]:
    return tuple(_holder(each) for each in holders)


def _holder(holder: Holder) -> SlotHolder:
    _, run, step, _ = holder.address.split(".")
    return SlotHolder(run=run, step=step, since_ms=holder.since_ms)
