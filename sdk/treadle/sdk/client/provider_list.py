"""The budgets of models' providers for people: what is free, who waits, and who has been called.

Read as workers read them, and nothing is written: what a worker would mend is left to it.

For people, not for decisions: by the time one reads it, it may have moved.
"""

from __future__ import annotations

import asyncio
import time
from typing import get_args

import msgspec

from treadle.sdk.bus.jetstream import Stored
from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import ProviderLine, ProviderRecord, ProviderWaiter
from treadle.sdk.provider_buckets import (
    LOOKED_AT_MAX,
    forecast,
    free_requests,
    free_tokens,
    ordered,
)
from treadle.sdk.stored import read

PROVIDERS_MAX = 1_000
"""Budgets that are listed; of more, those that were used last."""
WAITERS_TOLD = 3
"""Waiting steps that are told one by one."""
_AT_ONCE = 16

_record = msgspec.json.Decoder(ProviderRecord)
_waiter = msgspec.json.Decoder(ProviderWaiter)


class ProviderWait(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step that waits for a budget. Times are milliseconds since the epoch."""

    run: str
    step: str
    """Or the name of a chunk of a map."""
    tokens: int = 0
    """What its call is likely to take."""
    since_ms: int = 0
    """When it asked first."""
    turn_ms: int = 0
    """When it has its turn, if those before it make their calls as soon as they may."""
    called_ms: int = 0
    """When it had its turn and was told to come; 0 if it was not."""


class ProviderView(msgspec.Struct, frozen=True, kw_only=True):
    """One budget that workers share."""

    name: str
    kind: str = "provider"
    """Tells it from limits of steps and from lanes, where all are listed."""
    requests_per_minute: int = 0
    """As whoever asked last has it; 0 is no bound of one's own."""
    tokens_per_minute: int = 0
    requests_free: int | None = None
    """What is left now, by the budget and by what the provider said; None is no bound."""
    tokens_free: int | None = None
    held_until_ms: int = 0
    """Until then nobody calls, because of a 429; 0 if there is none."""
    held_by: str = ""
    waiting: int = 0
    """Steps that are waited for."""
    absent: int = 0
    """Steps that had their turn and did not come: nobody waits for them, and they are first when
    they do."""
    first: tuple[ProviderWait, ...] = ()
    """Those of the waiting that come next."""
    called: tuple[ProviderWait, ...] = ()
    """Those of the first 16 in line that were told to come, and have not come yet."""
    used_ms: int = 0
    """When its record changed last."""


async def providers_of(store: Store) -> list[ProviderView]:
    """Return the budgets of providers, those with the most waiting first."""
    s = store.subjects
    found = [each async for each in store.js.read(s.limits_stream, s.all_providers)]
    gate = asyncio.Semaphore(_AT_ONCE)

    async def view(stored: Stored) -> ProviderView:
        async with gate:
            return await _view(store, stored)

    views = await asyncio.gather(*(view(each) for each in found[-PROVIDERS_MAX:]))
    return sorted(views, key=lambda each: (-each.waiting, each.name))


async def _view(store: Store, stored: Stored) -> ProviderView:
    try:
        record = read(_record, stored)
    except StoredUnreadable:
        return ProviderView(name="unreadable, made anew with the next call", used_ms=stored.time_ms)
    key, now_ms = store.subjects.parse_provider(stored.subject), time.time_ns() // 1_000_000
    refused, others, absent = [await _count(store, key, each) for each in get_args(ProviderLine)]
    line = await _line(store, key) if refused or others else []
    times, _ = forecast(record, record, [each.tokens for each in line], now_ms)
    waits = [
        _wait(waiter, at_ms, record.called.get(waiter.place, 0))
        for waiter, at_ms in zip(line, times, strict=True)
    ]
    is_held = record.held_until_ms > now_ms
    return ProviderView(
        name=record.name,
        requests_per_minute=record.requests_per_minute,
        tokens_per_minute=record.tokens_per_minute,
        requests_free=free_requests(record, now_ms),
        tokens_free=free_tokens(record, now_ms),
        held_until_ms=round(record.held_until_ms) if is_held else 0,
        held_by=record.held_by if is_held else "",
        waiting=refused + others,
        absent=absent,
        first=tuple(waits[:WAITERS_TOLD]),
        called=tuple(each for each in waits if each.called_ms),
        used_ms=stored.time_ms,
    )


async def _count(store: Store, key: str, line: ProviderLine) -> int:
    s = store.subjects
    return await store.js.count(s.limits_stream, s.provider_waiters(key, line))


async def _line(store: Store, key: str) -> list[ProviderWaiter]:
    refused, others = [await _first(store, key, each) for each in ("a", "b")]
    return ordered(refused, others)[:LOOKED_AT_MAX]


async def _first(store: Store, key: str, line: ProviderLine) -> list[ProviderWaiter]:
    s, found = store.subjects, list[ProviderWaiter]()
    async for stored in store.js.read(
        s.limits_stream, s.provider_waiters(key, line), batch=LOOKED_AT_MAX
    ):
        try:
            found.append(read(_waiter, stored))
        except StoredUnreadable:
            continue  # A worker takes it out of the line.
        # Those who were refused come in the order of their age, so all count.
        if len(found) == LOOKED_AT_MAX and line != "a":
            break
    return found


def _wait(waiter: ProviderWaiter, at_ms: float, called_ms: int) -> ProviderWait:
    return ProviderWait(
        run=waiter.run,
        step=waiter.step,
        tokens=waiter.tokens,
        since_ms=waiter.since_ms,
        turn_ms=round(at_ms),
        called_ms=called_ms,
    )
