"""What happens in a run, as events for people and dashboards.

Names with a dot are the log's; every event carries the turn it belongs to. Deltas are given out
as they come, and that people are asked is told before it is recorded, so that a crash in between
tells it twice; all else describes what has been recorded already.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Literal

import msgspec

from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.core.nested import address
from treadle.worker.agent.models.port import Delta

EventName = Literal[
    "agent_run.started",
    "agent_run.completed",
    "agent_run.cancelled",
    "agent_run.failed",
    "agent_run.stopped",
    "agent_run.resumed",
    "agent_run.resume_unsafe",
    "agent_run.waiting",
    "agent_run.escalated",
    "agent_run.answer_refused",
    "agent_run.reopened",
    "agent.turn.started",
    "agent.turn.ended",
    "agent.message.started",
    "agent.message.delta",
    "agent.message.ended",
    "agent.message.superseded",
    "agent.message.heard",
    "agent.model.retry",
    "agent.call.judged",
    "agent.tool.started",
    "agent.tool.ended",
    "agent.tool.retry",
    "agent.tool.progress",
    "agent.loop.detected",
    "agent.guardrail.escalated",
    "agent.compaction.run",
    "agent.recovery.fired",
    "agent.exhaustion.soft",
    "agent.journal.changed",
    "agent.transcript.healed",
]

_log = logging.getLogger("treadle.agent")
_QUIET = frozenset({"agent.message.delta", "agent.tool.progress"})
_WARNINGS = frozenset(
    {
        "agent_run.failed",
        "agent_run.resume_unsafe",
        "agent_run.escalated",
        "agent.loop.detected",
        "agent.recovery.fired",
        "agent.transcript.healed",
        "agent.model.retry",
    }
)


class AgentEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One event."""

    name: EventName
    turn: int
    at_ms: int
    path: str = ""
    """The calls that lead to the sub-agent it happened in, ``call/call``; '' for the agent."""
    fields: dict[str, Any] = {}
    delta: Delta | None = None


OnEvent = Callable[[AgentEvent], None]


class Emitter:
    """Gives events out; a listener that raises does not disturb the run."""

    def __init__(self, on_event: OnEvent | None, now_ms: Callable[[], int], path: str = "") -> None:
        self._on_event = on_event
        self._now_ms = now_ms
        self.path = path
        self.turn = 0

    def nested(self, call_id: str) -> Emitter:
        """Return an emitter for the sub-agent of that call."""
        return type(self)(self._on_event, self._now_ms, address(self.path, call_id))

    def delta(self, delta: Delta) -> None:
        """Give out a piece of the answer."""
        self._give("agent.message.delta", delta, {})

    def emit(self, name: EventName, **fields: Any) -> None:
        """Give one event out, and log it unless it tells of progress."""
        if name not in _QUIET:
            level = logging.WARNING if name in _WARNINGS else logging.DEBUG
            if _log.isEnabledFor(level):
                text = " ".join(f"{key}={value}" for key, value in fields.items())
                where = f"{self.turn} path={self.path}" if self.path else self.turn
                _log.log(level, "%s turn=%s %s", name, where, text)
        self._give(name, None, fields)

    def _give(self, name: EventName, delta: Delta | None, fields: dict[str, Any]) -> None:
        if self._on_event is None:
            return
        event = AgentEvent(
            name=name,
            turn=self.turn,
            at_ms=self._now_ms(),
            path=self.path,
            fields=fields,
            delta=delta,
        )
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 — a listener must not end a run
            _log.exception("agent.listener-failed event=%s", name)


def tell_stop(emitter: Emitter, stop: Stopped) -> None:
    """Tell that a run is over, and why."""
    match stop.reason:
        case "completed":
            emitter.emit("agent_run.completed", **({"detail": stop.detail} if stop.detail else {}))
        case "cancelled":
            emitter.emit("agent_run.cancelled")
        case "failed":
            emitter.emit("agent_run.failed", detail=stop.detail)
        case _:
            emitter.emit("agent_run.stopped", reason=stop.reason, detail=stop.detail)
