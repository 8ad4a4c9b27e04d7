"""What ``Client.explain`` returns: an explanation, and the reasons it is made of."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.errors import sentence

Level = Literal["problem", "waits", "works", "pause", "note", "ended"]
"""``problem`` is something to mend; ``waits`` is for somebody, who has to act; ``works`` is getting
on; ``pause`` ends by itself; a ``note`` decides nothing; ``ended`` is final."""

State = Literal["healthy", "stuck", "ended"]

ReasonKind = Literal[
    "engine_down",
    "engine_behind",
    "requested",
    "storage",
    "scheduled",
    "version_kept",
    "lane_queued",
    "lane_next",
    "deadlock",
    "unserved",
    "untaken",
    "undispatched",
    "overdue",
    "blocked",
    "maybe_blocked",
    "ask",
    "signal_wait",
    "event_wait",
    "child_wait",
    "message_wait",
    "parked",
    "paused",
    "executing",
    "mapping",
    "starting",
    "moving",
    "limited",
    "slots_busy",
    "slot_wait",
    "holder_gone",
    "retry_delay",
    "loop_delay",
    "asleep",
    "undoing",
    "timed_wait",
    "provider_busy",
    "worker_lost",
    "dead_letter",
    "choice",
    "note",
    "completed",
    "failed",
    "cancelled",
]

_ORDERS: dict[str, tuple[Level, ...]] = {
    "problem": ("problem", "waits", "works", "pause", "note"),
    "works": ("works", "waits", "pause", "note"),
    "waits": ("waits", "pause", "note"),
    "pause": ("pause", "note"),
    "ended": ("ended", "note"),
}
"""By what decides, which reason is told before which."""


class Reason(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One reason why a run stands, or what it does."""

    kind: ReasonKind
    level: Level
    text: str
    """In words, with its times as moments and as ages."""
    command: str = ""
    """What to run next; empty if nothing has to be done."""
    step: str = ""
    """The step it is about; empty for the run."""
    since_ms: int = 0
    until_ms: int = 0
    """When it ends by itself; 0 is not known, or never."""


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Why a run is not getting on, or what it is doing."""

    run: str
    workflow: str
    status: str
    state: State
    """``stuck`` goes on only when somebody acts; a pause that ends by itself is ``healthy``."""
    at_ms: int
    """The server's time when it was looked at."""
    reasons: tuple[Reason, ...]
    """The main one first; never empty."""

    @property
    def is_stuck(self) -> bool:
        """True when somebody has to act before the run gets on."""
        return self.state == "stuck"

    @property
    def main(self) -> Reason:
        """The reason that decides."""
        return self.reasons[0]

    def __str__(self) -> str:
        verb = {"healthy": "is getting on", "stuck": "is stuck", "ended": "has ended"}[self.state]
        return sentence(f"run {self.run} of {self.workflow} {verb}: {self.main.text}")


def decided(reasons: list[Reason]) -> tuple[State, tuple[Reason, ...]]:
    """Return the state that reasons mean, and the reasons in the order to tell them in."""
    levels = {reason.level for reason in reasons}
    deciding = next(
        level for level in ("ended", "problem", "works", "waits", "pause") if level in levels
    )
    order = _ORDERS[deciding]
    told = sorted(reasons, key=lambda reason: order.index(reason.level))
    state: State = "stuck" if deciding in ("problem", "waits") else "healthy"
    return "ended" if deciding == "ended" else state, tuple(told)
