"""What ``treadle doctor`` looks at: server, streams, processes, and one real write.

Each check says what it saw, and for what is not well the remedy. A check that cannot be made
says so: it is never taken for a good one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from treadle.cli import monitoring
from treadle.cli.check import Check
from treadle.cli.doctor_stored import check_stored
from treadle.engine.topology import stream_configs
from treadle.sdk.bus.assets import differences
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.bus.retrying import BUDGET_S
from treadle.sdk.client.explain.hearing import hear
from treadle.sdk.client.explain.storing import probe
from treadle.sdk.client.living import is_engine_pulling
from treadle.sdk.client.notes import START_WORKER
from treadle.sdk.client.store import Store
from treadle.sdk.definition import TypedStep
from treadle.sdk.errors import ServerError, ServerUnsuitable, StoredUnreadable
from treadle.sdk.messages import WorkerPresence
from treadle.sdk.namespace import open_namespace
from treadle.sdk.payload import small_server
from treadle.sdk.presence import BLOCKED_REMEDY, describe_blocked
from treadle.sdk.settings import Settings
from treadle.sdk.wording import Suggestions

SLOW_WRITE_MS = 100
"""A stored write above it makes every iteration slow: it takes three of them."""
CLOCK_SKEW_MS_MAX = 2_000
"""What times read from two clocks may differ before ages shown to a person mislead."""
FULL_SHARE = 0.8


async def examine(settings: Settings, monitor: str | None) -> list[Check]:
    """Return every check that could be made, in the order of what they rest on."""
    try:
        connection = await Connection.open(settings, name="treadle-doctor")
    except ServerError as error:
        return [Check("server", "fail", str(error))]
    try:
        return await _examine(connection, settings, monitor)
    finally:
        await connection.close()


async def _examine(connection: Connection, settings: Settings, monitor: str | None) -> list[Check]:
    js = JetStream(connection, message_ids=settings.message_ids)
    found = [
        Check("server", "ok", f"nats-server {connection.server_version} at {settings.shown_url}")
    ]
    if small := small_server(connection.max_payload_bytes):
        found.append(Check("server", "warn", *small))
    found.append(await _account(js))
    found.append(await asyncio.to_thread(monitoring.check_sync, settings, monitor))
    try:
        subjects = await open_namespace(js, settings)
    except (ServerUnsuitable, StoredUnreadable) as error:
        return [*found, Check("namespace", "fail", str(error), "treadle engine")]
    partitions = f"{subjects.partitions} partition{'s' if subjects.partitions > 1 else ''}"
    found.append(Check("namespace", "ok", f"{settings.namespace!r}, {partitions}"))
    store = Store(js, subjects)
    found.extend(await _streams(store))
    found.extend(await _processes(store))
    found.extend(await check_stored(store))
    found.append(await _probe(store))
    return found


# ---------------------------------------------------------------- JetStream


async def _account(js: JetStream) -> Check:
    try:
        info = await js.api("INFO")
    except (ApiError, Unknown) as error:
        return Check("jetstream", "fail", f"the account's state cannot be read: {error}")
    used, limit = int(info.get("storage", 0)), int(info.get("limits", {}).get("max_storage", -1))
    if 0 < limit < used / FULL_SHARE:
        return Check(
            "jetstream",
            "warn",
            f"{used} of at most {limit} bytes are stored: when it is full, no run moves",
            "raise the account's max_storage, or delete old runs",
        )
    return Check("jetstream", "ok", f"enabled, {_size(used)} stored")


async def _streams(store: Store) -> list[Check]:
    problems: list[Check] = []
    replicas: set[int] = set()
    configs = stream_configs(store.subjects, 1)
    for config in configs:
        name = config["name"]
        try:
            info = await store.js.api(f"STREAM.INFO.{name}")
        except (ApiError, Unknown) as error:
            text = f"{name} cannot be read: {error}"
            problems.append(Check("streams", "fail", text, "restart an engine: it creates it"))
            continue
        have: dict[str, Any] = info["config"]
        replicas.add(int(have.get("num_replicas", 1)))
        problems.extend(_wrong(name, config, have))
        problems.extend(_replica_problems(name, info.get("cluster") or {}))
        if config is configs[0]:
            problems.extend(_clock(info.get("ts", "")))
    if not any(problem.status == "fail" for problem in problems):
        text = f"{len(configs)} streams as they should be: file storage, no state is dropped"
        problems.insert(0, Check("streams", "ok", text))
    return [*problems, _copies(replicas)] if replicas else problems


def _wrong(name: str, asked: dict[str, Any], have: dict[str, Any]) -> list[Check]:
    keys = [key for key in differences(asked, have) if key != "num_replicas"]
    return [
        Check(
            "streams",
            "fail",
            f"{name}: {key} is {have.get(key)!r}, and must be {asked[key]!r}",
            f"nats stream edit {name}",
        )
        for key in keys
    ]


def _replica_problems(name: str, cluster: dict[str, Any]) -> list[Check]:
    peers: list[dict[str, Any]] = cluster.get("replicas") or []
    lost = [str(peer["name"]) for peer in peers if peer.get("offline") or not peer.get("current")]
    if not lost:
        return []
    text = f"{name}: the copies on {', '.join(lost)} are offline or behind"
    return [Check("streams", "warn", text, "see those servers' logs")]


def _copies(replicas: set[int]) -> Check:
    if min(replicas) >= 3:
        return Check("replicas", "ok", f"{min(replicas)} copies of every stream")
    return Check(
        "replicas",
        "warn",
        f"{min(replicas)} copy of a stream: runs are lost with its disk, and wait while it is down",
        "for production a cluster of three; `treadle engine --replicas 3` counts for streams it "
        "creates, `nats stream edit NAME --replicas 3` for those that are there",
    )


def _clock(server_time: str) -> list[Check]:
    if not server_time:
        return []
    skew_ms = time.time() * 1000 - datetime.fromisoformat(server_time[:19] + "Z").timestamp() * 1000
    if abs(skew_ms) < CLOCK_SKEW_MS_MAX:
        return []
    text = f"this machine's clock and the server's differ by {skew_ms / 1000:.0f} s: ages mislead"
    return [Check("clock", "warn", text, "set both by NTP")]


# ---------------------------------------------------------------- processes, probe


async def _processes(store: Store) -> list[Check]:
    recorded = await store.presence()
    heard = await hear(store.js.connection, store.subjects, frozenset(), recorded, ())
    engines = [each for each in recorded if each.role == "engine" and each not in heard.silent]
    workers = [each for each in recorded if each.role == "worker" and each not in heard.silent]
    found: list[Check] = []
    if engines:
        found.append(Check("engines", "ok", f"{len(engines)} alive"))
    elif not any(each.role == "engine" for each in recorded) and await is_engine_pulling(store):
        text = "one is alive, and its presence record could not be stored or is not there yet"
        found.append(Check("engines", "warn", text, "see the other checks: is the store full?"))
    else:
        found.append(Check("engines", "fail", "none is alive: nothing moves", "treadle engine"))
    types = sorted({name for worker in workers for name in worker.types})
    if workers:
        text = f"{len(workers)} alive, serving {', '.join(types) or 'nothing'}"
        found.append(Check("workers", "ok", text))
    else:
        text = "none is alive: no task is executed"
        found.append(Check("workers", "warn", text, START_WORKER))
    found.extend(_silent(each) for each in heard.silent)
    found.extend(_blocked(workers))
    found.extend(await _unserved(store, workers))
    return found


def _silent(process: WorkerPresence) -> Check:
    """Return what to know of a process that is recorded and was not heard."""
    name = f"{process.role} {process.name or process.incarnation!r}"
    text = f"{name} (process {process.pid}) gives no sign of life: dead, stopped, or cut off"
    return Check(f"{process.role}s", "warn", text, "end it if it still runs, and start another one")


def _blocked(workers: Sequence[WorkerPresence]) -> list[Check]:
    return [
        Check(
            "workers",
            "warn",
            f"{describe_blocked(worker)}: all its tasks wait",
            BLOCKED_REMEDY,
        )
        for worker in workers
        if worker.blocked_ms
    ]


async def _unserved(store: Store, workers: Sequence[WorkerPresence]) -> list[Check]:
    served = {name for worker in workers for name in worker.types}
    missing: dict[str, str] = {}
    for name, version in (await store.workflow_hashes()).items():
        try:
            definition = await store.definition(name, version) if version else None
        except StoredUnreadable:
            continue  # The check of what is stored names it.
        for step in definition.steps if definition else ():
            if isinstance(step, TypedStep) and step.type not in served:
                missing.setdefault(step.type, name)
    return [
        Check(
            "workers",
            "warn",
            f"no worker serves task type {task_type!r} of workflow {workflow!r}"
            f"{_like(task_type, served)}",
            f'{START_WORKER}, of a file that has @worker.handler("{task_type}")',
        )
        for task_type, workflow in sorted(missing.items())
        if workers
    ]


def _like(task_type: str, served: Iterable[str]) -> str:
    near = Suggestions().nearest(task_type, sorted(served))
    return f"; did you mean {near!r}, which is served?" if near else ""


async def _probe(store: Store) -> Check:
    try:
        probed = await probe(store, "probe", BUDGET_S)
    except ServerError as error:
        return Check("write", "fail", str(error))
    if not probed.is_read_back:
        text = "what was written is not what was read back"
        return Check("write", "fail", text, "run it again; two doctors at once disturb each other")
    if probed.took_ms > SLOW_WRITE_MS:
        text = f"written and read back, but the write took {probed.took_ms:.0f} ms"
        return Check("write", "warn", text, "look at the server's disk and load")
    return Check("write", "ok", f"written and read back, {probed.took_ms:.1f} ms")


def _size(size_bytes: int) -> str:
    for unit in ("bytes", "KiB", "MiB"):
        if size_bytes < 1024:
            return f"{size_bytes} {unit}"
        size_bytes //= 1024
    return f"{size_bytes} GiB"
