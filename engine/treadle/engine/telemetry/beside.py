"""The projector beside an engine: in a process of its own, or as a task; nothing waits for it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle.engine.telemetry.projector import Projector, Send
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.namespace import open_namespace
from treadle.sdk.settings import Settings

RETRY_S = 5.0
STOP_S = 3.0
"""What a projector's process has to end in, once its engine does; then it is killed."""

_log = logging.getLogger("treadle.telemetry")


class Tracing:
    """Whether and how an engine has the traces of runs exported."""

    def __init__(
        self, send: Send | None = None, *, as_process: bool = False, is_live: bool = False
    ) -> None:
        self._send = send
        self._as_process = as_process
        self._is_live = is_live

    @property
    def is_wanted(self) -> bool:
        """True if there is somewhere to export to."""
        return self._send is not None or self._as_process

    @asynccontextmanager
    async def beside(self, settings: Settings, name: str, incarnation: str) -> AsyncGenerator[None]:
        """Project while the block runs."""
        if self._send is not None:
            work = project(settings, name, incarnation, self._send, self._is_live)
        elif self._as_process:
            work = _supervise(settings, incarnation, is_live=self._is_live)
        else:
            yield
            return
        task = asyncio.create_task(work)
        try:
            yield
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task


async def project(
    settings: Settings, name: str, incarnation: str, send: Send, is_live: bool
) -> None:
    """Project until cancelled, whatever fails."""
    while True:
        try:
            connection = await Connection.open(settings, name=f"{name}-telemetry")
            try:
                await _on(connection, settings, incarnation, send, is_live)
            finally:
                await connection.close()
        except Exception as exc:  # noqa: BLE001 — whatever it is, the engine goes on
            _log.warning("telemetry.projector-failed %r; it begins again in %g s", exc, RETRY_S)
        await asyncio.sleep(RETRY_S)


async def _on(
    connection: Connection, settings: Settings, incarnation: str, send: Send, is_live: bool
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

    await Projector(js, subjects, send, is_first=is_first, live=is_live).run()


async def _supervise(settings: Settings, incarnation: str, *, is_live: bool) -> None:
    """Keep a projector's process alive until cancelled."""
    command = [sys.executable, "-m", "treadle.engine.telemetry", incarnation]
    environment = {**os.environ, **settings.to_env()}
    while True:
        process = await asyncio.create_subprocess_exec(
            *command,
            *(["live"] if is_live else []),
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            # What a terminal sends to the engine's group is for the engine to pass on.
            start_new_session=True,
        )
        try:
            status = await process.wait()
            _log.warning("telemetry.projector-ended status=%d; again in %g s", status, RETRY_S)
        finally:
            await _end(process)
        await asyncio.sleep(RETRY_S)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is not None:
        return
    assert process.stdin is not None
    process.stdin.close()
    try:
        async with asyncio.timeout(STOP_S):
            await process.wait()
    except TimeoutError:
        process.kill()
        await process.wait()
