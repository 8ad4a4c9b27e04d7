"""How far the engines are with the events of a run's partition, as the server says it."""

from __future__ import annotations

import time
from typing import Any

from treadle.sdk.bus.acks import CONSUMER_NOT_FOUND, time_us
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, Stored
from treadle.sdk.client.explain.facts import EngineFacts, Halt
from treadle.sdk.client.looking import Look
from treadle.sdk.client.store import Store
from treadle.sdk.run import sequence_of


async def engine_facts(store: Store, found: Look) -> EngineFacts:
    """Return how far the engines are with the events of the run's partition."""
    s = store.subjects
    partition = s.partition(found.view.id)
    name = s.engine_consumer(partition)
    info = await consumer(store, s.events_stream, name)
    if info is None:
        return EngineFacts()
    floor: dict[str, Any] = info["ack_floor"]
    pending = int(info["num_pending"]) + int(info["num_ack_pending"])
    oldest = await _after(store, partition, int(floor["stream_seq"])) if pending else None
    behind_ms = 0
    if oldest is not None:
        behind = await _behind(store, found, partition, info, oldest)
        behind_ms = behind.time_ms if behind else 0
    last_active = floor.get("last_active", "")
    return EngineFacts(
        pending=pending,
        oldest_ms=oldest.time_ms if oldest else 0,
        behind_ms=behind_ms,
        handled_ms=time_us(last_active) // 1_000 if last_active else 0,
        halt=halt_of(info, s.events_stream, name),
    )


async def _behind(
    store: Store, found: Look, partition: int, info: dict[str, Any], oldest: Stored
) -> Stored | None:
    """Return an event that keeps the run waiting: the oldest of which that is certain.

    ``oldest`` is the first in the partition that is not handled. Of those that were given out the
    server says no more than how many are not acknowledged.
    """
    s, run = store.subjects, found.view.id
    if s.parse_event(oldest.subject).run == run:
        return oldest
    delivered = int(info["delivered"]["stream_seq"])
    if int(info["num_ack_pending"]) > 1 and (own := await store.last_event(run)):
        newest = max(oldest.sequence, _applied(found))
        if newest < own.sequence <= delivered:
            return own
    return await _after(store, partition, delivered) if info["num_pending"] else None


def _applied(found: Look) -> int:
    """Return the sequence of the newest event that left a trace in what is stored of the run."""
    run = found.document
    if run is None:
        return 0
    parents = [getattr(held.register, "parent", "") for held in found.registers.values()]
    named = [*parents, *(entry.event for entry in run.steps.values()), *run.applied]
    if run.pause is not None:
        named += [run.pause.event, run.pause.resumed]
    signals = [sequence for kept in run.signals.values() for sequence in kept]
    events = (sequence_of(event) for event in named if event.startswith("e"))
    return max((run.requested, run.placed, *signals, *events))


async def _after(store: Store, partition: int, sequence: int) -> Stored | None:
    s = store.subjects
    return await store.js.next(s.events_stream, s.events_of_partition(partition), sequence + 1)


def halt_of(info: dict[str, Any], stream: str, name: str) -> Halt | None:
    """Return why the server gives out nothing, given what it says of the consumer."""
    if info.get("paused"):
        until_ms = time_us(info["config"]["pause_until"]) // 1_000
        text = f"consumer {name} of stream {stream} is paused"
        return Halt(text, f"nats consumer resume {stream} {name}", until_ms)
    out, most = int(info["num_ack_pending"]), int(info["config"].get("max_ack_pending", -1))
    if not 0 < most <= out:
        return None
    text = f"{out} messages of consumer {name} of stream {stream} are given out, of at most {most}"
    return Halt(text, f"nats consumer edit {stream} {name} --max-pending NUMBER")


async def consumer(store: Store, stream: str, name: str) -> dict[str, Any] | None:
    """Return what the server says of a consumer; None if it does not, or there is none."""
    try:
        return await store.js.api(f"CONSUMER.INFO.{stream}.{name}")
    except ApiError as error:
        if error.err_code == CONSUMER_NOT_FOUND:
            return None
        raise error.for_users(f"the state of consumer {name!r}") from error
    except Unknown:
        return None


async def now_of(store: Store) -> int:
    """Return the server's time: ages from two clocks mislead."""
    try:
        info = await store.js.api(f"STREAM.INFO.{store.subjects.events_stream}")
        return time_us(info["ts"]) // 1_000
    except (ApiError, Unknown, KeyError):
        return time.time_ns() // 1_000_000
