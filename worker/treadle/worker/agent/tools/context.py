"""What a tool sees of its call: ``ctx: ToolContext[Deps]`` as its first parameter."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, TypeVar

from treadle.worker.cancellation import BlockingCancelToken
from treadle.worker.field_logger import FieldLogger

D = TypeVar("D")

_log = logging.getLogger("treadle.tool")


class ToolContext(Generic[D]):
    """One attempt of a tool call. Good in the tool's thread as well as on the event loop."""

    __slots__ = (
        "_heartbeat",
        "_logger",
        "_report",
        "attempt",
        "call_id",
        "cancelled",
        "deps",
        "idempotency_key",
        "iteration",
        "run",
        "step",
        "tool",
    )

    def __init__(
        self,
        deps: D,
        *,
        run: str = "",
        step: str = "",
        iteration: int = 0,
        tool: str = "",
        call_id: str = "",
        idempotency_key: str = "",
        attempt: int = 1,
        heartbeat: Callable[[], None] = lambda: None,
        report: Callable[[object], None] = lambda _: None,
    ) -> None:
        self.deps: D = deps
        """What the agent was given for its tools: clients, settings, the user."""
        self.run = run
        self.step = step
        self.iteration = iteration
        self.tool = tool
        """Name of the tool."""
        self.call_id = call_id
        """The model's id of the call."""
        self.idempotency_key = idempotency_key
        """The same for every attempt of the call, also after a crash: pass it to the service."""
        self.attempt = attempt
        """Number of this attempt of the call, from 1."""
        self.cancelled = BlockingCancelToken()
        """Set when the call should stop. A plain function, which runs in a thread, must ask;
        an ``async`` one is cancelled at its next ``await`` besides."""
        self._heartbeat = heartbeat
        self._report = report
        self._logger: FieldLogger | None = None

    def heartbeat(self) -> None:
        """Say that the call is getting on: the task's time at the server starts anew."""
        self._heartbeat()

    def report(self, progress: object) -> None:
        """Tell those who watch the run how far the call is, as text or as JSON data."""
        self._report(progress)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry run, step, iteration, tool and call id."""
        if self._logger is None:
            fields = {
                "run": self.run,
                "step": self.step,
                "iteration": self.iteration,
                "tool": self.tool,
                "call_id": self.call_id,
            }
            self._logger = FieldLogger(_log, fields)
        return self._logger
