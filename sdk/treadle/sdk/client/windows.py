"""Starts that are collected and are no run yet, for people: the windows that are open.

Which keys have any is read off their timers, and off the starts that no engine has looked at. What
is a window is decided by what is stored, as engines decide it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import msgspec

from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, Stored
from treadle.sdk.client.store import Store
from treadle.sdk.collected import CollectedStart, WindowRecord
from treadle.sdk.collecting import Batch, Collect
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.stored import read
from treadle.sdk.subjects_of_starts import StartsOf
from treadle.sdk.windows import Member, Window, due_ms, extended

KEYS_MAX = 1_000
"""Keys that are looked at: a list for people."""
STARTS_READ_MAX = 5_000
"""Starts read that no engine has looked at."""
_AT_ONCE = 16

_start = msgspec.json.Decoder(CollectedStart)
_record = msgspec.json.Decoder(WindowRecord)


class WindowView(msgspec.Struct, frozen=True, kw_only=True):
    """Starts of a key that become a run together. Times are milliseconds since the epoch."""

    workflow: str
    key: str
    """The value of its key; empty if the workflow has none."""
    kind: Literal["debounce", "batch"]
    count: int
    """Starts that have come."""
    size_max: int = 0
    """Of a batch: with how many it is full."""
    opened_ms: int
    """When the first of them came."""
    newest_ms: int
    """When the last one did."""
    closes_ms: int
    """When its run begins, unless a start comes before that changes it."""
    is_closed: bool
    """No start can come into it any more, and its run begins as soon as an engine takes it."""
    version: str
    first: int
    """Sequence of the first start, as its receipt says; the run has it as ``window_first``."""
    last: int


async def windows_of(store: Store, workflow: str | None) -> list[WindowView]:
    """Return the windows that are open, or not requested yet: first those that close next."""
    keys = await _keys(store, workflow)
    gate = asyncio.Semaphore(_AT_ONCE)
    rules: dict[tuple[str, str], Collect | None] = {}

    async def of_key(starts: StartsOf) -> list[WindowView]:
        async with gate:
            return await _windows(store, starts, rules)

    found = await asyncio.gather(*(of_key(each) for each in keys))
    views = [view for some in found for view in some]
    return sorted(views, key=lambda each: (not each.is_closed, each.closes_ms, each.first))


async def _keys(store: Store, workflow: str | None) -> list[StartsOf]:
    found: dict[StartsOf, None] = {}
    async for stored in _told(store):
        starts = store.subjects.parse_starts(stored.subject)
        if workflow is None or starts.workflow == workflow:
            found[starts] = None
        if len(found) == KEYS_MAX:
            break
    return list(found)


async def _told(store: Store) -> AsyncIterator[Stored]:
    """Yield what says of a key that it may have starts."""
    js, s = store.js, store.subjects
    for filter in (s.all_collect_timers, s.all_collect_firings):
        async for stored in js.read(s.timers_stream, filter):
            yield stored
    count = 0
    async for stored in js.read(s.collect_stream, s.all_collected, start=await _settled(store) + 1):
        yield stored
        count += 1
        if count == STARTS_READ_MAX:
            return


async def _settled(store: Store) -> int:
    """Return up to which start all were looked at by an engine, as far as it is known."""
    s = store.subjects
    try:
        info = await store.js.api(f"CONSUMER.INFO.{s.collect_stream}.{s.collect_consumer()}")
    except (ApiError, Unknown):
        return 0
    return int(info["ack_floor"]["stream_seq"])


async def _windows(
    store: Store, starts: StartsOf, rules: dict[tuple[str, str], Collect | None]
) -> list[WindowView]:
    js, s = store.js, store.subjects
    found: list[WindowView] = []
    window: Window | None = None
    rule: Collect | None = None
    key = ""
    closed = await _closed(store, starts)
    async for stored in js.read(s.collect_stream, s.collected_of_key(starts), start=closed + 1):
        try:
            start = read(_start, stored)
        except StoredUnreadable:
            continue
        own = await _rule(store, starts.workflow, start.version, rules)
        if own is None:
            continue  # Engines leave it out too.
        key = start.key
        size_bytes = len(bytes(start.input))
        member = Member(stored.sequence, stored.time_ms, size_bytes, start.version)
        if window is not None and rule is not None:
            grown = extended(rule, window, member)
            if grown.last == member.sequence:
                window = grown
                continue
            found.append(_view(starts.workflow, key, rule, grown))
        rule, window = own, extended(own, None, member)
    if window is not None and rule is not None:
        found.append(_view(starts.workflow, key, rule, window))
    return found


async def _closed(store: Store, starts: StartsOf) -> int:
    s = store.subjects
    stored = await store.js.last(s.windows_stream, s.window(starts))
    try:
        return read(_record, stored).closed if stored and stored.data else 0
    except StoredUnreadable:
        return 0


async def _rule(
    store: Store, workflow: str, version: str, rules: dict[tuple[str, str], Collect | None]
) -> Collect | None:
    if (workflow, version) not in rules:
        definition = await store.definition(workflow, version)
        rules[workflow, version] = definition.collect if definition else None
    return rules[workflow, version]


def _view(workflow: str, key: str, rule: Collect, window: Window) -> WindowView:
    is_batch = isinstance(rule, Batch)
    return WindowView(
        workflow=workflow,
        key=key,
        kind="batch" if is_batch else "debounce",
        count=window.count,
        size_max=rule.max_size if isinstance(rule, Batch) else 0,
        opened_ms=window.first_ms,
        newest_ms=window.last_ms,
        closes_ms=due_ms(rule, window),
        is_closed=window.is_closed,
        version=window.version,
        first=window.first,
        last=window.last,
    )
