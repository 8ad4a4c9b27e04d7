"""The projector beside an engine: a task with its own connection, which nothing waits for."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle.engine.telemetry.projector import Projector, Send
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.namespace import open_namespace
from treadle.sdk.settings import Settings

RETRY_S = 5.0

_log = logging.getLogger("treadle.telemetry")


@asynccontextmanager
async def tracing(
    settings: Settings, name: str, incarnation: str, send: Send | None, live: bool
) -> AsyncGenerator[None]:
    """Project while the block runs; without ``send`` do nothing."""
    if send is None:
        yield
        return
    task = asyncio.create_task(_project(settings, name, incarnation, send, live))
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def _project(settings: Settings, name: str, incarnation: str, send: Send, live: bool) -> None:
    while True:
        try:
            connection = await Connection.open(settings, name=f"{name}-telemetry")
            try:
                await _on(connection, settings, incarnation, send, live)
            finally:
                await connection.close()
        except Exception as exc:  # noqa: BLE001 — whatever it is, the engine goes on
            _log.warning("telemetry.projector-failed %r; it begins again in %g s", exc, RETRY_S)
        await asyncio.sleep(RETRY_S)


async def _on(
    connection: Connection, settings: Settings, incarnation: str, send: Send, live: bool
) -> None:
    js = JetStream(connection, message_ids=settings.message_ids)
    subjects = await open_namespace(js, settings)
    store = Store(js, subjects)

    async def is_first() -> bool:
        engines = [
            (process.started_ms, process.incarnation)
            for process in await store.presence()
            if process.role == "engine" and process.projects
        ]
        return bool(engines) and min(engines)[1] == incarnation

    await Projector(js, subjects, send, is_first=is_first, live=live).run()
