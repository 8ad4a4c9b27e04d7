"""The index beside an engine: in a process of its own, or as a task; nothing waits for it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle.engine.index.serving import TURN_S, RunIndex
from treadle.engine.telemetry.outside import Place, beside, keep_doing
from treadle.engine.telemetry.supervising import supervise
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

RUNS_MIN = 1_000
"""Fewer documents are read in some milliseconds, without any index."""
CHECK_S = 5.0


class Indexing:
    """Whether and how an engine keeps an index of the runs.

    ``as_process`` or as a task of the engine's own loop; neither is none. It begins once the
    namespace has ``runs_min`` runs.
    """

    def __init__(
        self, *, as_process: bool = False, as_task: bool = False, runs_min: int = RUNS_MIN
    ) -> None:
        self._as_process = as_process
        self._as_task = as_task
        self._runs_min = runs_min

    @property
    def is_wanted(self) -> bool:
        """True if there may be an index."""
        return self._as_process or self._as_task

    @asynccontextmanager
    async def beside(
        self, js: JetStream, subjects: Subjects, settings: Settings, name: str, incarnation: str
    ) -> AsyncGenerator[None]:
        """Keep the index while the block runs."""
        if not self.is_wanted:
            yield
            return
        async with beside(self._work(js, subjects, settings, name, incarnation)):
            yield

    async def _work(
        self, js: JetStream, subjects: Subjects, settings: Settings, name: str, incarnation: str
    ) -> None:
        while not await _has_runs(js, subjects, self._runs_min):
            await asyncio.sleep(CHECK_S)
        if self._as_process:
            await supervise("index", "treadle.engine.index", [incarnation], settings)
        else:
            await keep(settings, name, incarnation)


async def keep(settings: Settings, name: str, incarnation: str) -> None:
    """Index the runs whenever it is this engine's turn, until cancelled, whatever fails."""

    async def work(place: Place) -> None:
        async def is_first() -> bool:
            return await place.is_oldest(incarnation, lambda process: process.indexes)

        index = RunIndex(place.js, place.subjects, is_first=is_first)
        while True:
            while not await is_first():
                await asyncio.sleep(TURN_S)
            await index.run()

    await keep_doing("index", f"{name}-index", settings, work)


async def _has_runs(js: JetStream, subjects: Subjects, count: int) -> bool:
    if not count:
        return True
    try:
        info = await js.api(f"STREAM.INFO.{subjects.runs_stream}")
    except (ApiError, Unknown):
        return False
    return int(info["state"]["messages"]) >= count
