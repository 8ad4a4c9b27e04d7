"""What counts beside an engine: a task with its own connection, which nothing waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from opentelemetry.metrics import Meter

from treadle.engine.telemetry.instruments import Instruments
from treadle.engine.telemetry.metering import Metering
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.namespace import open_namespace
from treadle.sdk.settings import Settings

RETRY_S = 5.0

_log = logging.getLogger("treadle.telemetry")


@asynccontextmanager
async def counting(
    meter: Meter | None, settings: Settings, name: str, incarnation: str
) -> AsyncGenerator[None]:
    """Count while the block runs; without a meter do nothing."""
    if meter is None:
        yield
        return
    # Once: a meter keeps what was made of it.
    instruments = Instruments(meter)
    task = asyncio.create_task(_count(instruments, settings, name, incarnation))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _count(instruments: Instruments, settings: Settings, name: str, incarnation: str) -> None:
    while True:
        try:
            connection = await Connection.open(settings, name=f"{name}-metrics")
            try:
                await _on(connection, instruments, settings, incarnation)
            finally:
                await connection.close()
        except Exception as exc:  # noqa: BLE001 — whatever it is, the engine goes on
            _log.warning("telemetry.metrics-failed %r; it begins again in %g s", exc, RETRY_S)
        await asyncio.sleep(RETRY_S)


async def _on(
    connection: Connection, instruments: Instruments, settings: Settings, incarnation: str
) -> None:
    js = JetStream(connection, message_ids=settings.message_ids)
    subjects = await open_namespace(js, settings)
    store = Store(js, subjects)

    async def is_first() -> bool:
        engines = [
            (process.started_ms, process.incarnation)
            for process in await store.presence()
            if process.role == "engine" and process.measures
        ]
        return bool(engines) and min(engines)[1] == incarnation

    await Metering(js, subjects, instruments, is_first=is_first).run()
