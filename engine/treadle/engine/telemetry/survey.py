"""What the server knows and no event tells: queues, living workers, events not handled yet."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Collection
from typing import Any, NamedTuple

import msgspec

from treadle.engine.telemetry.instruments import Point
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import SlotRecord, WorkerPresence
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing import names

_record = msgspec.json.Decoder(SlotRecord)


class Queue(NamedTuple):
    """The consumer of one task type, or of one partition of the events."""

    name: str
    pending: int
    ack_pending: int
    floor: int
    """Every message up to this sequence is handled."""


async def look(
    js: JetStream,
    subjects: Subjects,
    presence: Collection[WorkerPresence],
    task_types: Collection[str],
) -> list[Point]:
    """Return what the gauges show now; ``task_types`` are named even if nobody serves them."""
    return [
        *_workers(presence, task_types),
        *await _queues(js, subjects),
        *await _limits(js, subjects),
        *await _lag(js, subjects),
    ]


def _workers(presence: Collection[WorkerPresence], task_types: Collection[str]) -> list[Point]:
    serving = Counter(dict.fromkeys(task_types, 0))
    for process in presence:
        serving.update(process.types)
    return [Point(metrics.TASK_WORKERS, n, {names.TASK_TYPE: t}) for t, n in serving.items()]


async def _queues(js: JetStream, subjects: Subjects) -> list[Point]:
    pending: Counter[str] = Counter()
    held: Counter[str] = Counter()
    async for queue in _consumers(js, subjects.steps_stream):
        role, _, rest = queue.name.partition("-")
        if role == "worker":
            task_type = rest.partition("-")[2]
            pending[task_type] += queue.pending
            held[task_type] += queue.ack_pending
    return [
        Point(instrument, n, {names.TASK_TYPE: task_type})
        for instrument, counts in (
            (metrics.QUEUE_PENDING, pending),
            (metrics.QUEUE_ACK_PENDING, held),
        )
        for task_type, n in counts.items()
    ]


async def _limits(js: JetStream, subjects: Subjects) -> list[Point]:
    """Return what of each limit is held and waited for, its keys together: they are many."""
    held: Counter[str] = Counter()
    waiting: Counter[str] = Counter()
    async for stored in js.read(subjects.limits_stream, subjects.all_slots):
        try:
            record = read(_record, stored)
        except StoredUnreadable:
            continue
        name = record.label.partition(" [")[0]
        held[name] += len(record.holders)
        if record.lines:
            limit = subjects.parse_limit(stored.subject)
            filter = subjects.slot_waiters_of_limit(limit)
            waiting[name] += await js.count(subjects.limits_stream, filter)
    return [
        Point(instrument, counts[name], {metrics.LIMIT: name})
        for name in held
        for instrument, counts in ((metrics.LIMIT_HELD, held), (metrics.LIMIT_WAITING, waiting))
    ]


async def _lag(js: JetStream, subjects: Subjects) -> list[Point]:
    count, lag_s = 0, 0.0
    async for queue in _consumers(js, subjects.events_stream):
        role, _, partition = queue.name.partition("-")
        if role != "engine" or not (waiting := queue.pending + queue.ack_pending):
            continue
        count += waiting
        filter = subjects.events_of_partition(int(partition))
        oldest = await js.next(subjects.events_stream, filter, queue.floor + 1)
        if oldest is not None:
            lag_s = max(lag_s, time.time() - oldest.time_us / 1e6)
    return [Point(metrics.EVENT_LAG, lag_s, {}), Point(metrics.EVENT_PENDING, count, {})]


async def _consumers(js: JetStream, stream: str) -> AsyncIterator[Queue]:
    offset = 0
    while True:
        page: dict[str, Any] = await js.api(f"CONSUMER.LIST.{stream}", {"offset": offset})
        found: list[dict[str, Any]] = page.get("consumers") or []
        for each in found:
            yield Queue(
                each["name"],
                int(each["num_pending"]),
                int(each["num_ack_pending"]),
                int(each["ack_floor"]["stream_seq"]),
            )
        offset += len(found)
        if not found or offset >= int(page["total"]):
            return
