"""Tool calls as data: what was proposed, what was decided, what came of it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.worker.agent.core.conversation import Block

Decision = Literal[
    "execute",
    "invalid",
    "denied",
    "suppressed",
    "over_budget",
    "needs_approval",
    "truncated",
    "duplicate",
    "question",
    "uncertain",
    "unavailable",
]
"""What software makes of a proposed call.

``execute``         it may run
``invalid``         unknown tool, or arguments that do not fit its schema
``denied``          forbidden by the policy
``suppressed``      the storm guard: issued identically too often
``over_budget``     the budget of tool calls is used up
``needs_approval``  a person has to agree to exactly these arguments
``truncated``       the answer was cut off, so the arguments may be incomplete
``duplicate``       same id and same arguments as another call of the turn
``question``        a question to a person: the answer is the result
``uncertain``       may have run before a crash, and must not run twice: a person decides
``unavailable``     the tool has failed so often that it is not called any more
"""

FOR_PEOPLE: frozenset[Decision] = frozenset({"needs_approval", "question", "uncertain"})

CallStatus = Literal["ok", "error", "timeout", "cancelled", "refused", "unsafe", "skipped"]
"""How a call ended. ``refused`` never ran; ``unsafe`` may have run before a crash."""

Effect = Literal["none", "committed", "unknown"]
"""What a call has done to the world. A failed call that may have acted is ``unknown``."""


class ToolCall(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One ``tool_use`` block, and what was decided about it."""

    id: str
    name: str
    input: dict[str, Any]
    """The arguments as they are executed: repaired, or edited by an approver."""
    args_hash: str
    """sha256 of the canonical JSON of ``input``: what an approval is bound to."""
    decision: Decision = "execute"
    reason: str = ""
    """For the model: why the call does not run, and what to do instead."""
    repairs: tuple[str, ...] = ()
    """What was repaired in the arguments."""


class ToolResult(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What came of a call."""

    id: str
    name: str
    status: CallStatus
    content: str | list[Block]
    """What the model sees: capped, and free of lone surrogates. Never empty."""
    effect: Effect = "none"
    attempts: int = 1
    duration_ms: int = 0
    terminate: bool = False
    """The tool asks that the turn be the last."""
    full_bytes: int = 0
    """Size of the whole output when ``content`` was cut, else 0."""
    error_type: str = ""

    @property
    def is_error(self) -> bool:
        """True for everything but ``ok``."""
        return self.status != "ok"
