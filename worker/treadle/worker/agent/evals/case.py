"""A case: a goal, a mocked world, a scripted model, and what the run has to be like.

    case_id: shipping_lookup_repeated_failure
    goal: Investigate whether an order arrived late.
    mocked_tools:
      shipping.read_delivery_status:
        - {status: retryable_error, reason: upstream_timeout}
    model:
      - calls: [{tool: shipping.read_delivery_status, args: {order_id: O-104}}]
      - calls: [{tool: ask_human, args: {question: "The carrier does not answer. Go on?"}}]
    expected:
      stop_reason: needs_human
      max_tool_calls: 2
      forbidden_tools: [refunds.issue_refund]
      requires_trace_events: [proposal, validation, tool_result, stop]

A dot in a tool's name stands for ``_``, since model providers allow no dots. Read next:
``reading`` (files), ``running`` (what happens with a case), ``checking`` (what is expected).
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import msgspec

from treadle.worker.agent.core.conversation import ErrorKind
from treadle.worker.agent.core.stops import StopReason

MockStatus = Literal["ok", "error", "retryable_error", "timeout", "malformed"]
"""
``ok``               ``output`` is returned
``error``            the tool fails with ``reason``
``retryable_error``  the tool fails in a way that may pass: an idempotent tool is tried again
``timeout``          the tool does not end within its timeout
``malformed``        ``output`` is returned as the text it is, such as cut JSON; without one, a
                     value that cannot be shown to a model at all
"""


class MockedResult(msgspec.Struct, frozen=True, kw_only=True):
    """What one attempt of a mocked tool comes to. The last one of a tool's list stays."""

    status: MockStatus
    output: Any = None
    reason: str = ""


class ScriptedCall(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call that the scripted model proposes."""

    short: ClassVar[str] = "tool"
    tool: str
    args: Any = {}
    """Arguments; something else than a mapping is proposed as it is, to be refused."""
    id: str = ""


class ScriptedUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens of a scripted turn, in place of the estimate."""

    input_tokens: int = 0
    output_tokens: int = 0
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0


class ScriptedError(msgspec.Struct, frozen=True, kw_only=True):
    """The model call fails."""

    short: ClassVar[str] = "kind"
    kind: ErrorKind
    message: str = "the script says so"


class ScriptedTurn(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of the scripted model. A bare text is an answer of that text."""

    short: ClassVar[str] = "text"
    text: str = ""
    calls: tuple[ScriptedCall, ...] = ()
    output: Any = msgspec.UNSET
    """The result: given through the tool for typed results, or as text."""
    stop_reason: str = ""
    """``tool_use`` with calls and ``end_turn`` without, if left out."""
    usage: ScriptedUsage | None = None
    error: ScriptedError | None = None


class ScriptedReply(msgspec.Struct, frozen=True, kw_only=True):
    """What a person says to each call of a tool that waits for one."""

    short: ClassVar[str] = "verdict"
    verdict: Literal["approve", "reject", "answer"]
    text: str = ""
    input: dict[str, Any] | None = None


class NeededEvidence(msgspec.Struct, frozen=True, kw_only=True):
    """A successful call that has to be in the trajectory before the run stops."""

    short: ClassVar[str] = "tool"
    tool: str
    args: dict[str, Any] = {}
    """These arguments, among others."""
    contains: str = ""
    """A text in its result."""


class Expected(msgspec.Struct, frozen=True, kw_only=True):
    """What the run has to be like; what is left out is not checked."""

    stop_reason: StopReason | None = None
    max_tool_calls: int | None = None
    """Executed calls at most."""
    forbidden_tools: tuple[str, ...] = ()
    """None of them may run. Proposing one is no fault, if software refused it."""
    requires_trace_events: tuple[str, ...] = ()
    """Words of ``trajectory.TRACE``, or names of the runtime's events."""
    output: Any = msgspec.UNSET
    """The result holds at least this: fields of a mapping at any depth; a text as a part of the
    result's text."""
    evidence: tuple[NeededEvidence, ...] = ()


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One evaluation."""

    case_id: str
    goal: str
    mocked_tools: dict[str, tuple[MockedResult, ...]] = {}
    model: tuple[ScriptedTurn, ...] | None = None
    """The scripted answers; ``None``, written ``live``, is the agent's own model."""
    replies: dict[str, ScriptedReply] = {}
    """What people say, by tool. Without an entry nobody answers, and the run waits."""
    expected: Expected
