"""The journal of an agent: everything that has happened, in order, one entry each.

    Opened   Heard   Answered   Judged   Started   Kept   Settled   Noted   Asked   Escalated
    Replied   Refused   Checked   TurnEnded   Compacted   Stopped   Nested   RoundEnded

An entry is written when its fact is certain and never changed. Entries marked durable are stored
before anything is built on them; the others can be derived again and travel with the next one.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.conversation import Block, ModelFault, ThinkingLevel, Usage
from treadle.worker.agent.core.spec import Versions
from treadle.worker.agent.core.stops import StopReason

HeardFrom = Literal["steering", "follow_up", "notice"]
Purpose = Literal["turn", "final"]
Stage = Literal["compact", "prune"]
ReplyVerdict = Literal["approve", "reject", "answer", "expired"]

NOTHING = msgspec.Raw(b"null")


class _Entry(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind"):
    at_ms: int = 0
    """Milliseconds since the epoch."""


class Opened(_Entry, frozen=True, tag="opened", kw_only=True):
    """A conversation begins, and with the first one the run. Durable."""

    goal: list[Block]
    versions: Versions
    trace_id: str = ""
    phase: str = ""
    """Which of the step's conversations this is, when it has several."""
    carried: msgspec.Raw = NOTHING
    """What the step keeps for the conversations after this one."""


class Heard(_Entry, frozen=True, tag="heard", kw_only=True):
    """The model is told something between turns: by a person, or by the runtime."""

    source: HeardFrom
    content: list[Block]
    seen: int = 0
    """Position in the inbox up to which all is taken."""
    limit: str = ""
    """The bound that was reached, when this asks for the last answer."""
    is_malformed: bool = False
    """The answer before this had tool input that was no JSON, and is gone."""


class Answered(_Entry, frozen=True, tag="answered", kw_only=True):
    """The model's answer, exactly as it came. Durable: it is never paid for twice."""

    purpose: Purpose
    content: list[Block]
    stop_reason: str
    usage: Usage
    wasted: Usage = Usage()
    """Used by failed tries of the same call."""
    cost_micro_usd: int = 0
    model: str = ""
    response_id: str = ""
    tries: int = 1
    duration_ms: int = 0


class Wasted(_Entry, frozen=True, tag="wasted", kw_only=True):
    """A model call failed after using tokens, and the run goes on or is tried again. Durable."""

    usage: Usage
    cost_micro_usd: int = 0


class Judged(_Entry, frozen=True, tag="judged", kw_only=True):
    """What software decided about each proposed call, in the order of the answer."""

    calls: tuple[ToolCall, ...]


class Started(_Entry, frozen=True, tag="started", kw_only=True):
    """A call that must not run twice begins. Durable, before it runs."""

    id: str
    name: str
    args_hash: str
    key: str
    """Its idempotency key."""


class Kept(_Entry, frozen=True, tag="kept", kw_only=True):
    """A part of an output that the model sees cut. Durable, before the result: one a record."""

    call_id: str
    tool: str
    size_bytes: int
    """Of the whole, as UTF-8."""
    part: int = 0
    text: str


class Settled(_Entry, frozen=True, tag="settled", kw_only=True):
    """A call has ended. Durable, before the model sees the result."""

    result: ToolResult


class Noted(_Entry, frozen=True, tag="noted", kw_only=True):
    """The run journal was changed by one of its tools."""

    field: str
    value: str
    append: bool = False


class Replied(_Entry, frozen=True, tag="replied", kw_only=True):
    """A person has answered a question or decided about a call. Durable."""

    call_id: str
    verdict: ReplyVerdict
    args_hash: str = ""
    """The arguments that were decided about."""
    input: dict[str, Any] | None = None
    """The arguments to run with instead, and their hash."""
    input_hash: str = ""
    text: str = ""
    by: str = ""
    seen: int = 0


class Level(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Somebody else is asked, if nobody has answered by then."""

    at_ms: int
    to: str


class Asked(_Entry, frozen=True, tag="asked", kw_only=True):
    """People are asked about calls of this turn; the run waits. Durable."""

    call_ids: tuple[str, ...]
    due_ms: int = 0
    """When the default takes effect; 0 is never."""
    levels: tuple[Level, ...] = ()
    """The escalations, in their order; they stand fixed from here on, like ``due_ms``."""
    after: int = 0
    """Answers up to this position in the inbox are about what was asked before."""


class Escalated(_Entry, frozen=True, tag="escalated", kw_only=True):
    """Nobody has answered by the time of a level, so the next ones are asked. Durable."""

    call_ids: tuple[str, ...]
    level: int
    """From 1."""


class Refused(_Entry, frozen=True, tag="refused", kw_only=True):
    """A person's answer cannot be taken: it goes back to the person. Durable."""

    call_id: str
    problem: str
    by: str = ""
    seen: int = 0


class Checked(_Entry, frozen=True, tag="checked", kw_only=True):
    """The proposed result was checked against its type and the evidence."""

    problem: str = ""
    """Why it is not accepted; '' accepts it."""
    output: msgspec.Raw = msgspec.Raw(b"null")


class Detection(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The agent was found going in circles."""

    tier: str
    tool: str
    level: int


class TurnEnded(_Entry, frozen=True, tag="turn_ended", kw_only=True):
    """All calls of the turn are settled; the iteration is over. Durable with what precedes."""

    notes: tuple[str, ...] = ()
    """What the runtime tells the model, after the results."""
    detection: Detection | None = None
    watch: msgspec.Raw = msgspec.Raw(b"")
    """The watch after the turn (``watch.py``), which the following turns are judged by."""
    iteration: int = -1
    """Iteration of the step in which the turn ended."""


class Compacted(_Entry, frozen=True, tag="compacted", kw_only=True):
    """Older messages were replaced by a summary. Durable: folding starts here."""

    stage: Stage
    block: list[Block]
    """Content of the one user message that stands for them."""
    dropped: int
    """Messages replaced."""
    tail_chars_max: int = 0
    """Results in the messages that stay were cut to so many characters; 0 is none."""
    tokens_before: int
    tokens_after: int
    is_fallback: bool = False
    """The summary call failed, and the text was cut deterministically."""
    usage: Usage = Usage()
    cost_micro_usd: int = 0


class Switched(_Entry, frozen=True, tag="switched", kw_only=True):
    """The model or the thinking level of the following turns."""

    model: str = ""
    thinking: ThinkingLevel | None = None


class Stopped(_Entry, frozen=True, tag="stopped", kw_only=True):
    """The run is over. Durable."""

    reason: StopReason
    text: str = ""
    output: msgspec.Raw = msgspec.Raw(b"null")
    detail: str = ""
    fault: ModelFault | None = None
    drifted: Versions | None = None
    """The agent is another now than when the run began; these are its versions."""
    retired: tuple[str, ...] = ()
    """Tools that the conversation names and that agent does not have any more."""
    is_closed: bool = False
    """A sub-agent was ended because the agent that called it ends, or has used up its budget."""


class Nested(_Entry, frozen=True, tag="nested", kw_only=True):
    """An entry of the sub-agent that a call of the open turn runs. As durable as what it holds."""

    call_id: str
    """The call of this agent; a sub-agent's own sub-agents nest further."""
    entry: Entry


class RoundEnded(_Entry, frozen=True, tag="round_ended", kw_only=True):
    """Every open sub-agent has had its turn; the iteration is over. Durable."""

    iteration: int = -1
    """Iteration of the step in which the round ended."""


Entry = (
    Opened
    | Heard
    | Answered
    | Wasted
    | Judged
    | Started
    | Kept
    | Settled
    | Noted
    | Asked
    | Escalated
    | Replied
    | Refused
    | Checked
    | TurnEnded
    | Compacted
    | Switched
    | Stopped
    | Nested
    | RoundEnded
)

DURABLE = (
    Opened,
    Answered,
    Wasted,
    Started,
    Kept,
    Settled,
    Asked,
    Escalated,
    Replied,
    Refused,
    Compacted,
    TurnEnded,
    Stopped,
    RoundEnded,
)
"""Stored at once, with the entries before them; the others can be derived again."""


def is_durable(entry: Entry) -> bool:
    """True for an entry that is stored at once."""
    return isinstance(innermost(entry), DURABLE)


def innermost(entry: Entry) -> Entry:
    """Return the entry as the agent has it in which it happened."""
    while isinstance(entry, Nested):
        entry = entry.entry
    return entry
