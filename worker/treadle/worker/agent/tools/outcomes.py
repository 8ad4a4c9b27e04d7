"""From how a call ended to its result. Pure.

The effect of a tool that is not idempotent: ``committed`` once it returned, ``unknown`` when it
failed, timed out or was cancelled after it had begun, ``none`` when it refused by itself.
"""

from __future__ import annotations

from typing import assert_never

import msgspec

from treadle.sdk.errors import clause
from treadle.worker.agent.core.calls import CallStatus, Effect, ToolCall, ToolResult
from treadle.worker.agent.tools.attempts import Outcome, Raised, Returned, Stopped, TimedOut
from treadle.worker.agent.tools.errors import ToolRejected
from treadle.worker.agent.tools.rendering import NO_OUTPUT, Unrenderable, error_text, render
from treadle.worker.agent.tools.results import Ended, Terminate
from treadle.worker.agent.tools.tool import AnyTool

FIND_OUT = "Whether it took effect is not known: find out before you call it again."


class Shown(msgspec.Struct, frozen=True):
    """A result, and the whole output if what the model sees is cut."""

    result: ToolResult
    whole: bytes = b""


def shown_result(
    call: ToolCall,
    tool: AnyTool,
    outcome: Outcome,
    *,
    bytes_max: int,
    attempts: int = 1,
    duration_ms: int = 0,
) -> Shown:
    """Return the result of a call that has run."""
    match outcome:
        case Returned():
            shown = _returned(call, tool, outcome.value, bytes_max)
        case Raised():
            shown = Shown(_raised(call, tool, outcome.error, attempts))
        case TimedOut():
            shown = Shown(_timed_out(call, tool))
        case Stopped():
            shown = Shown(cancelled_result(call, tool, has_begun=True))
        case _:
            assert_never(outcome)
    result = msgspec.structs.replace(shown.result, attempts=attempts, duration_ms=duration_ms)
    return Shown(result, shown.whole)


def refused_result(call: ToolCall, reason: str, error_type: str = "") -> ToolResult:
    """Return the result of a call that was not allowed to run."""
    return ToolResult(
        id=call.id,
        name=call.name,
        status="refused",
        content=reason or "This call was not allowed to run.",
        error_type=error_type or call.decision,
        attempts=0,
    )


def skipped_result(call: ToolCall, reason: str) -> ToolResult:
    """Return the result of a call that had not begun when it was no longer wanted."""
    return ToolResult(id=call.id, name=call.name, status="skipped", content=reason, attempts=0)


def cancelled_result(call: ToolCall, tool: AnyTool, *, has_begun: bool) -> ToolResult:
    """Return the result of a call that was open when its batch was cancelled."""
    effect = _effect_of_failure(tool) if has_begun else "none"
    if not has_begun:
        text = "This call was cancelled before it began; it had no effect."
    elif effect == "unknown":
        text = f"This call was cancelled while it ran. {FIND_OUT}"
    else:
        text = "This call was cancelled while it ran."
    return ToolResult(
        id=call.id,
        name=call.name,
        status="cancelled",
        content=text,
        effect=effect,
        error_type="cancelled",
        attempts=1 if has_begun else 0,
    )


def unsafe_result(call: ToolCall, why: str) -> ToolResult:
    """Return the result of a call that may have run before a crash and must not run twice."""
    return ToolResult(
        id=call.id,
        name=call.name,
        status="unsafe",
        content=f"{why} {FIND_OUT}",
        effect="unknown",
        error_type="unsafe",
    )


def replaced(result: ToolResult, status: CallStatus, content: str, error_type: str) -> ToolResult:
    """Return the result with other content; what the call has done stays what it is."""
    return msgspec.structs.replace(
        result, status=status, content=content, error_type=error_type, terminate=False, full_bytes=0
    )


def _returned(call: ToolCall, tool: AnyTool, value: object, bytes_max: int) -> Shown:
    terminate = tool.terminate
    if isinstance(value, Terminate):
        terminate, value = True, value.result
    ended = value if isinstance(value, Ended) else Ended(result=value, status="ok")
    effect: Effect = "none" if tool.idempotent else "committed"
    if ended.status in ("refused", "skipped"):
        effect = "none"
    elif ended.status != "ok":
        effect = _effect_of_failure(tool)
    if ended.effect is not None:
        effect = ended.effect
    try:
        rendered = render(ended.result, bytes_max)
    except Unrenderable as exc:
        text = f"The tool ran, but its result cannot be shown: {clause(exc)}."
        return Shown(
            ToolResult(
                id=call.id,
                name=call.name,
                status="error",
                content=text,
                effect=effect,
                error_type="unrenderable",
            )
        )
    result = ToolResult(
        id=call.id,
        name=call.name,
        status=ended.status,
        content=rendered.content,
        effect=effect,
        terminate=terminate and ended.status == "ok",
        full_bytes=rendered.full_bytes,
        error_type=ended.error_type or ("" if ended.status == "ok" else ended.status),
    )
    return Shown(result, rendered.whole)


def _raised(call: ToolCall, tool: AnyTool, error: BaseException, attempts: int) -> ToolResult:
    if isinstance(error, ToolRejected):
        text = error_text(error).removeprefix(f"{type(error).__name__}: ")
        return ToolResult(
            id=call.id, name=call.name, status="error", content=text, error_type="rejected"
        )
    text = error_text(error)
    if attempts > 1:
        text = f"{text} (after {attempts} attempts)"
    return ToolResult(
        id=call.id,
        name=call.name,
        status="error",
        content=text or NO_OUTPUT,
        effect=_effect_of_failure(tool),
        error_type=type(error).__name__,
    )


def _timed_out(call: ToolCall, tool: AnyTool) -> ToolResult:
    effect = _effect_of_failure(tool)
    text = f"{call.name} did not finish within {tool.timeout_s:g} s."
    return ToolResult(
        id=call.id,
        name=call.name,
        status="timeout",
        content=f"{text} {FIND_OUT}" if effect == "unknown" else text,
        effect=effect,
        error_type="timeout",
    )


def _effect_of_failure(tool: AnyTool) -> Effect:
    return "none" if tool.idempotent else "unknown"
