"""Whether the server takes writes: limits of the account and the streams, and one real write."""

from __future__ import annotations

import time
from typing import Any

import msgspec

from treadle.sdk.bus.acks import time_us
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.client.explain.facts import StorageFault
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.errors import ServerError, clause

PROBE_S = 2.0
"""A write that is not acknowledged by then has failed, as far as a person is concerned."""
_PROBE = "_doctor"
"""A workflow name nobody would give; its versions are where a probe is written."""
_MESSAGES_ROOM_MIN = 2
"""A stream without room for so many of its usual messages is full."""


class Probed(msgspec.Struct, frozen=True):
    """A write that the server took."""

    took_ms: float
    is_read_back: bool
    """What was read is what was written; not so when two probe at once."""


async def probe(store: Store, name: str, budget_s: float) -> Probed:
    """Write a value, read it and delete it; raise ``ServerError`` if the server does not."""
    subject = store.subjects.workflow_version(_PROBE, name)
    stream = store.subjects.workflows_stream
    body = msgspec.json.encode({"at_ns": time.time_ns()})
    started = time.perf_counter()
    await store.js.store(subject, body, budget_s=budget_s, full_s=FULL_S)
    took_ms = (time.perf_counter() - started) * 1000
    back = await store.js.last(stream, subject, budget_s=budget_s)
    await store.js.purge(stream, subject, budget_s=budget_s)
    return Probed(took_ms, back is not None and back.data == body)


async def storage_faults(store: Store) -> tuple[StorageFault, ...]:
    """Return for what reasons runs could not be stored."""
    s = store.subjects
    found: list[StorageFault] = []
    stored_ms = 0
    for stream in (s.events_stream, s.steps_stream, s.runs_stream):
        try:
            info = await store.js.api(f"STREAM.INFO.{stream}")
        except (ApiError, Unknown) as error:
            text = f"stream {stream} cannot be read ({error})"
            found.append(StorageFault(text, "treadle doctor"))
            continue
        last_ms = time_us(info["state"]["last_ts"]) // 1_000 if info["state"]["messages"] else 0
        stored_ms = max(stored_ms, last_ms)
        if text := full_text(stream, info):
            remedy = f"nats stream edit {stream}, or delete old runs"
            found.append(StorageFault(text, remedy, last_ms))
    if fault := await _account_fault(store):
        found.append(fault)
    if not found:
        try:
            await probe(store, "explain", PROBE_S)
        except ServerError as error:
            found.append(StorageFault(clause(error), "treadle doctor", stored_ms))
    return tuple(found)


def full_text(stream: str, info: dict[str, Any]) -> str:
    """Return how a stream is full, given its state and configuration; '' if it is not."""
    config, state = info["config"], info["state"]
    if config.get("sealed"):
        return f"stream {stream} is sealed"
    messages, size = int(state["messages"]), int(state["bytes"])
    messages_max = int(config.get("max_msgs", -1))
    if 0 < messages_max <= messages:
        return f"stream {stream} is full, {messages} of at most {messages_max} messages"
    bytes_max = int(config.get("max_bytes", -1))
    usual = size / messages if messages else 0
    if bytes_max > 0 and bytes_max - size < _MESSAGES_ROOM_MIN * usual:
        return f"stream {stream} is full, {size} of at most {bytes_max} bytes"
    return ""


async def _account_fault(store: Store) -> StorageFault | None:
    try:
        info = await store.js.api("INFO")
    except (ApiError, Unknown) as error:
        return StorageFault(f"JetStream does not answer ({error})", "treadle doctor")
    used, limit = int(info.get("storage", 0)), int(info.get("limits", {}).get("max_storage", -1))
    if not 0 < limit <= used:
        return None
    text = f"the account is full, {used} of at most {limit} bytes"
    return StorageFault(text, "raise the account's max_storage, or delete old runs")
