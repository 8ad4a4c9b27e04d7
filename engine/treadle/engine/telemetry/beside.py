"""The projector beside an engine: in a process of its own, or as a task; nothing waits for it."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle.engine.telemetry.outside import RETRY_S, Place, beside, keep_doing
from treadle.engine.telemetry.projector import Projector, Send
from treadle.engine.telemetry.relaying import LINE_BYTES_MAX, relay
from treadle.sdk.settings import Settings

STOP_S = 3.0
"""What a projector's process has to end in, once its engine does; then it is killed."""

_log = logging.getLogger("treadle.telemetry")


class Tracing:
    """Whether and how an engine has the traces of runs exported."""

    def __init__(
        self,
        send: Send | None = None,
        *,
        as_process: bool = False,
        is_live: bool = False,
        with_content: bool = False,
    ) -> None:
        """``with_content`` exports what was said and returned, too."""
        self._send = send
        self._as_process = as_process
        self._is_live = is_live
        self._with_content = with_content

    @property
    def _modes(self) -> list[str]:
        """The arguments of a projector's process."""
        return ["live"] * self._is_live + ["content"] * self._with_content

    @property
    def is_wanted(self) -> bool:
        """True if there is somewhere to export to."""
        return self._send is not None or self._as_process

    @asynccontextmanager
    async def beside(self, settings: Settings, name: str, incarnation: str) -> AsyncGenerator[None]:
        """Project while the block runs."""
        if self._send is not None:
            work = project(
                settings, name, incarnation, self._send, self._is_live, self._with_content
            )
        elif self._as_process:
            work = _supervise(settings, incarnation, self._modes)
        else:
            yield
            return
        async with beside(work):
            yield


async def project(
    settings: Settings, name: str, incarnation: str, send: Send, is_live: bool, with_content: bool
) -> None:
    """Project until cancelled, whatever fails."""

    async def work(place: Place) -> None:
        async def is_first() -> bool:
            return await place.is_oldest(incarnation, lambda process: process.projects)

        await Projector(
            place.js,
            place.subjects,
            send,
            is_first=is_first,
            live=is_live,
            content=with_content,
        ).run()

    await keep_doing("projector", f"{name}-telemetry", settings, work)


async def _supervise(settings: Settings, incarnation: str, modes: list[str]) -> None:
    """Keep a projector's process alive until cancelled."""
    command = [sys.executable, "-m", "treadle.engine.telemetry", incarnation]
    environment = {**os.environ, **settings.to_env()}
    while True:
        process = await asyncio.create_subprocess_exec(
            *command,
            *modes,
            env=environment,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            limit=LINE_BYTES_MAX,
            # What a terminal sends to the engine's group is for the engine to pass on.
            start_new_session=True,
        )
        assert process.stderr is not None
        saying = asyncio.create_task(relay(process.stderr))
        try:
            status = await process.wait()
            await saying
            _log.warning("telemetry.projector-ended status=%d; again in %g s", status, RETRY_S)
        finally:
            await _end(process)
            saying.cancel()
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
