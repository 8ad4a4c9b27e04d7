"""The projector beside an engine: in a process of its own, or as a task; nothing waits for it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from treadle.engine.telemetry.outside import Place, beside, keep_doing
from treadle.engine.telemetry.projector import Projector, Send
from treadle.engine.telemetry.supervising import supervise
from treadle.sdk.settings import Settings


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
            arguments = [incarnation, *self._modes]
            work = supervise("projector", "treadle.engine.telemetry", arguments, settings)
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
