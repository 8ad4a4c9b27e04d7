"""Bad luck in a row: failures, refusals, empty and truncated answers, and when it is enough.

    a good outcome ends its streak      a bad one lengthens it      the bound stops the run

Each ``after_*`` takes what has just happened and returns the streaks, what the model is told,
and the stop, if that was one too many.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from treadle.worker.agent.core import tokens
from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.tools.canonical import args_hash

FAILURES_NUDGE = 3
FAILURES_MAX = 6
DENIALS_NUDGE = 2
DENIALS_MAX = 3
EMPTY_MAX = 2
TRUNCATED_MAX = 2
PAUSES_MAX = 6
"""Continuations of one paused answer."""
OUTPUT_RETRIES_MAX = 3
BREAKER_FAILURES = 5
"""Failures of one tool in a row, after which it is not called again in this run."""
REFUSALS_MAX = 3
"""Calls of such a tool, after which the run ends: it cannot do without."""
ERRORS_MAX = 5
PROPOSED_CHARS_MAX = 1_000
"""Of a result that was not accepted, in what people read."""
ERROR_CHARS_MAX = 160
OPEN = "tool_failure"
"""``error_type`` of a call that an open breaker refused."""

OutcomeKind = Literal["ok", "error", "timeout", "invalid", "denied", "open", "neutral"]
"""
``invalid``  did not run, because its arguments or its name are wrong
``denied``   did not run, because the policy forbids it
``open``     did not run, because its tool is broken
``neutral``  says nothing about how the agent fares
"""


class Outcome(msgspec.Struct, frozen=True):
    """How a call ended, as far as streaks go."""

    name: str
    kind: OutcomeKind
    error: str = ""
    args: str = ""


class Streaks(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What has gone wrong in a row so far."""

    failures: int = 0
    errors: tuple[str, ...] = ()
    """The failures of the streak, for the model."""
    failed: tuple[str, ...] = ()
    """Hashes of the streak's failures: the very same one again is a case for another guard."""
    is_nudged: bool = False
    """The model has been told about this streak of failures."""
    denials: int = 0
    empty: int = 0
    truncated: int = 0
    pauses: int = 0
    invalid_outputs: int = 0
    tools: dict[str, int] = {}
    """Failures in a row of each tool that has any."""
    refusals: int = 0
    """Calls that an open breaker refused."""

    def renewed(self) -> Streaks:
        """Return the streaks after a person has spoken: only broken tools stay broken."""
        return Streaks(tools=self.tools)

    @property
    def is_cut(self) -> bool:
        """True after an answer that was cut off: the next one may be longer."""
        return self.truncated > 0

    @property
    def is_paused(self) -> bool:
        """True after a paused answer: it is sent back as it is, and goes on."""
        return self.pauses > 0

    def is_open(self, name: str) -> bool:
        """True for a tool that has failed too often: it is not called any more."""
        return self.tools.get(name, 0) >= BREAKER_FAILURES


class Advice(msgspec.Struct, frozen=True, kw_only=True):
    """What follows from what has happened."""

    streaks: Streaks
    notes: tuple[str, ...] = ()
    """For the model."""
    stop: StopReason | None = None
    detail: str = ""


# ------------------------------------------------------------------ tools


def outcome(call: ToolCall, result: ToolResult) -> Outcome:
    """Return what the streaks have to know of a call that has ended."""
    kind: OutcomeKind = "neutral"
    if result.error_type == OPEN:
        kind = "open"
    elif call.decision == "denied":
        kind = "denied"
    elif call.decision == "invalid":
        kind = "invalid"
    elif result.status in ("ok", "error", "timeout"):
        kind = result.status
    error = "" if kind == "ok" else _text(result)
    return Outcome(call.name, kind, error, call.args_hash)


def after_tools(streaks: Streaks, outcomes: Iterable[Outcome]) -> Advice:
    """Return what follows from a turn's calls, in the order of the answer."""
    before = streaks
    opened: list[str] = []
    for each in outcomes:
        was_open = streaks.is_open(each.name)
        streaks = _counted(streaks, each)
        if streaks.is_open(each.name) and not was_open:
            opened.append(each.name)
    # Whatever one turn does in parallel, the model is told before it costs the run.
    if streaks.denials >= DENIALS_MAX and before.denials:
        return Advice(streaks=streaks, stop="policy_blocked", detail=_DENIED)
    if streaks.refusals >= REFUSALS_MAX and before.refusals:
        broken = ", ".join(sorted(name for name in streaks.tools if streaks.is_open(name)))
        detail = (
            f"{broken} failed {BREAKER_FAILURES} times in a row, and the agent cannot do without. "
            "See its errors, mend it, and resume the run."
        )
        return Advice(streaks=streaks, stop="tool_failure", detail=detail)
    if streaks.failures >= FAILURES_MAX and streaks.is_nudged:
        return Advice(streaks=streaks, stop="needs_human", detail=_failures_text(streaks))
    notes = [_open_note(name) for name in opened]
    if streaks.failures >= FAILURES_NUDGE and not streaks.is_nudged:
        notes.append(_failures_text(streaks))
        streaks = msgspec.structs.replace(streaks, is_nudged=True)
    if streaks.denials >= DENIALS_NUDGE > before.denials:
        notes.append(_DENIED_NOTE)
    return Advice(streaks=streaks, notes=tuple(notes))


def _counted(streaks: Streaks, each: Outcome) -> Streaks:
    match each.kind:
        case "ok":
            tools = {name: failed for name, failed in streaks.tools.items() if name != each.name}
            return msgspec.structs.replace(
                streaks,
                failures=0,
                errors=(),
                failed=(),
                is_nudged=False,
                denials=0,
                tools=tools,
                refusals=0,
            )
        case "error" | "timeout":
            tools = {**streaks.tools, each.name: streaks.tools.get(each.name, 0) + 1}
            return _failed(msgspec.structs.replace(streaks, tools=tools), each)
        case "invalid":
            return _failed(streaks, each)
        case "denied":
            return msgspec.structs.replace(streaks, denials=streaks.denials + 1)
        case "open":
            return msgspec.structs.replace(streaks, refusals=streaks.refusals + 1)
        case "neutral":
            return streaks


def _failed(streaks: Streaks, each: Outcome) -> Streaks:
    mark = args_hash([each.name, each.args, each.error])
    if mark in streaks.failed:
        return streaks
    error = _line(f"{each.name}: {each.error or each.kind}")
    errors = streaks.errors if error in streaks.errors else (*streaks.errors, error)
    return msgspec.structs.replace(
        streaks,
        failures=streaks.failures + (2 if each.kind == "timeout" else 1),
        errors=errors[-ERRORS_MAX:],
        failed=(*streaks.failed, mark)[-FAILURES_MAX:],
    )


# ------------------------------------------------------------------ answers


def after_answer(streaks: Streaks, *, stop_reason: str, has_text: bool, has_calls: bool) -> Advice:
    """Return what follows from an answer of the model, whatever its calls come to."""
    if stop_reason == "pause_turn":
        streaks = msgspec.structs.replace(streaks, pauses=streaks.pauses + 1)
        if streaks.pauses <= PAUSES_MAX:
            return Advice(streaks=streaks)
        detail = f"The provider paused one answer {streaks.pauses} times. Ask for less in one turn."
        return Advice(streaks=streaks, stop="failed", detail=detail)
    streaks = msgspec.structs.replace(streaks, pauses=0)
    if stop_reason == "max_tokens":
        streaks = msgspec.structs.replace(streaks, truncated=streaks.truncated + 1)
        if streaks.truncated < TRUNCATED_MAX:
            return Advice(streaks=streaks, notes=(_TRUNCATED_NOTE,))
        detail = (
            f"{streaks.truncated} answers in a row were cut off at max_tokens, the last with a "
            "raised bound. Raise max_output_tokens, or ask for less at once."
        )
        return Advice(streaks=streaks, stop="output_truncated", detail=detail)
    streaks = msgspec.structs.replace(streaks, truncated=0)
    if has_text or has_calls:
        return Advice(streaks=msgspec.structs.replace(streaks, empty=0))
    streaks = msgspec.structs.replace(streaks, empty=streaks.empty + 1)
    if streaks.empty < EMPTY_MAX:
        return Advice(streaks=streaks, notes=(_EMPTY_NOTE,))
    detail = f"The model gave neither text nor a tool call, {streaks.empty} times in a row."
    return Advice(streaks=streaks, stop="empty_turn", detail=detail)


def after_check(streaks: Streaks, problem: str, proposed: str = "") -> Advice:
    """Return what follows from the check of a proposed result; '' as the problem accepts it.

    ``proposed`` is the result as text, for people.
    """
    if not problem:
        return Advice(streaks=msgspec.structs.replace(streaks, invalid_outputs=0))
    streaks = msgspec.structs.replace(streaks, invalid_outputs=streaks.invalid_outputs + 1)
    if streaks.invalid_outputs <= OUTPUT_RETRIES_MAX:
        return Advice(streaks=streaks, notes=(problem,))
    detail = (
        f"The result was not accepted {streaks.invalid_outputs} times; the last time because: "
        f"{problem}"
    )
    if proposed:
        detail = f"{detail}\nThe last one was: {tokens.cut(proposed, PROPOSED_CHARS_MAX)}"
    return Advice(streaks=streaks, stop="failed", detail=detail)


# ------------------------------------------------------------------ texts


_DENIED_NOTE = (
    "These actions are forbidden here, and asking in other words does not change that. One more "
    "ends the run. Reach the goal without them, or say that you cannot."
)
_DENIED = (
    f"The agent proposed forbidden actions {DENIALS_MAX} times in a row. Allow them in its policy, "
    "or state the goal so that it needs none."
)
_TRUNCATED_NOTE = (
    "Your last answer was cut off at its length limit. Be brief: do the work in smaller steps, "
    "with smaller arguments."
)
_EMPTY_NOTE = (
    "Your last answer held neither text nor a tool call. Go on with the task: call a tool, or give "
    "your result as text."
)


def open_text(name: str) -> str:
    """Return the result of a call that an open breaker refused."""
    return (
        f"This call did not run: {name} failed {BREAKER_FAILURES} times in a row and is not called "
        "again in this run. Do without it, or say that you cannot."
    )


def _open_note(name: str) -> str:
    return (
        f"{name} has failed {BREAKER_FAILURES} times in a row and is not called again in this "
        "run. Do without it, or say that you cannot."
    )


def _failures_text(streaks: Streaks) -> str:
    listed = "\n".join(f"- {error}" for error in streaks.errors)
    return (
        f"Nothing has worked for {streaks.failures} tries:\n{listed}\n"
        "Name the cause they share, and check it before anything else. If it is outside your "
        "reach, say so instead of trying on."
    )


def _text(result: ToolResult) -> str:
    if isinstance(result.content, str):
        return result.content
    return " ".join(str(block["text"]) for block in result.content if block.get("type") == "text")


def _line(text: str) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= ERROR_CHARS_MAX else flat[: ERROR_CHARS_MAX - 1] + "…"
