"""Work beside an engine that nothing waits for: its own connection, begun again whatever fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.messages import WorkerPresence
from treadle.sdk.namespace import open_namespace
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

RETRY_S = 5.0

_log = logging.getLogger("treadle.telemetry")


class Place(NamedTuple):
    """What such work is given of the namespace."""

    js: JetStream
    subjects: Subjects
    store: Store

    async def is_oldest(self, incarnation: str, can: Callable[[WorkerPresence], bool]) -> bool:
        """True if this engine has lived longest of those that can do the work."""
        engines = [
            (process.started_ms, process.incarnation)
            for process in await self.store.presence()
            if process.role == "engine" and can(process)
        ]
        return bool(engines) and min(engines)[1] == incarnation


@asynccontextmanager
async def beside(work: Coroutine[Any, Any, None]) -> AsyncGenerator[None]:
    """Do the work while the block runs."""
    task = asyncio.create_task(work)
    try:
        yield
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


async def keep_doing(
    what: str, name: str, settings: Settings, work: Callable[[Place], Awaitable[None]]
) -> None:
    """Do the work on a connection of that name until cancelled, again whenever it fails."""
    while True:
        try:
            connection = await Connection.open(settings, name=name)
            try:
                js = JetStream(connection, message_ids=settings.message_ids)
                subjects = await open_namespace(js, settings)
                await work(Place(js, subjects, Store(js, subjects)))
            finally:
                await connection.close()
        except Exception as exc:  # noqa: BLE001 — whatever it is, the engine goes on
            _log.warning("telemetry.%s-failed %r; it begins again in %g s", what, exc, RETRY_S)
        await asyncio.sleep(RETRY_S)
