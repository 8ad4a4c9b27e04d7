"""The state of an agent run: the fold of its journal, and nothing besides.

``apply`` is the only way the state changes, and it never looks at anything but the state and the
entry: folding the same entries gives the same state on any machine, after any crash.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

import msgspec

from treadle.worker.agent.core import asks, compaction, earlier
from treadle.worker.agent.core.asks import Asking
from treadle.worker.agent.core.budget import Counters
from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.compaction import Recovery
from treadle.worker.agent.core.conversation import Block, Message, ThinkingLevel
from treadle.worker.agent.core.entries import (
    NOTHING,
    Answered,
    Asked,
    Checked,
    Compacted,
    Entry,
    Escalated,
    Heard,
    Judged,
    Kept,
    Nested,
    Noted,
    Opened,
    Refused,
    Replied,
    RoundEnded,
    Settled,
    Started,
    Stopped,
    Switched,
    TurnEnded,
    Wasted,
    innermost,
)
from treadle.worker.agent.core.kept import KeptOutput, with_part
from treadle.worker.agent.core.notes import RunJournal
from treadle.worker.agent.core.spec import FINAL_OUTPUT, Versions
from treadle.worker.agent.core.watch import OWN_TOOLS, Watch

_decode_watch = msgspec.json.Decoder(Watch).decode

_BEGUN = (
    "This call had begun when its worker died, and what came of it is not known: it may or may not "
    "have taken effect. Look before you issue it again."
)


class State(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What has happened so far in the conversation; of those before it, only their sums."""

    entries: int = 0
    """Entries folded."""
    messages: tuple[Message, ...] = ()
    """The live conversation: what the next request sends."""
    opened_ms: int = 0
    waited_ms: int = 0
    """Of the time since: in which people were waited for, or the run had stopped."""
    waiting_since_ms: int = 0
    """Since when people are waited for; 0 is not at all."""
    trace_id: str = ""
    versions: Versions = Versions()
    phase: str = ""
    carried: msgspec.Raw = NOTHING
    """What the step keeps for its next conversations."""
    before: Counters = Counters()
    """What the step's earlier conversations have used."""
    used: Counters = Counters()
    turn: int = 0
    """Turns that have ended."""
    ended_iteration: int = -1
    """Iteration of the step in which the last turn, or round of sub-agents, ended."""

    executed: dict[str, int] = {}
    """Executed calls, by tool."""

    call_ids: frozenset[str] = frozenset()
    """Ids of all calls of the step so far."""
    answer: Answered | None = None
    """The answer whose turn is open."""
    calls: tuple[ToolCall, ...] = ()
    is_judged: bool = False
    started: dict[str, Started] = {}
    results: dict[str, ToolResult] = {}
    asking: dict[str, Asking] = {}
    """What people are asked and have not answered, by call."""
    replies: dict[str, Replied] = {}
    consumed: frozenset[str] = frozenset()
    """Calls that began after their last reply: it says nothing about beginning once more."""
    children: dict[str, State] = {}
    """The sub-agents that open calls of the turn run, by the call's id."""
    is_round_open: bool = False
    """A sub-agent has done something since the last round of them ended."""
    later: tuple[Block, ...] = ()
    """Said while the turn was open: heard after its results."""
    checked: Checked | None = None

    watch: Watch = Watch()
    recovery: Recovery = Recovery()
    kept: dict[str, KeptOutput] = {}
    """Outputs that the model saw cut, whole, by call."""
    kept_bytes: int = 0
    """Of all that the step has kept, its sub-agents' and earlier conversations' included."""
    journal: RunJournal = RunJournal()
    journal_shown: RunJournal = RunJournal()
    """The journal as the prefix of the conversation shows it."""
    context_tokens: int = 0
    """Window filled by the last call: its input and its output."""
    added_chars: int = 0
    """Characters of content added since."""
    is_overfull: bool = False
    """The last answer ended at the end of the window, whatever was counted."""
    seen: dict[str, int] = {}
    """Position in the inbox up to which all is taken, by kind of message."""
    model: str = ""
    """Model of the following turns, when it was switched."""
    thinking: ThinkingLevel | None = None
    retired: tuple[str, ...] = ()
    """Tools the agent had when the run began, and lost by a change that a person accepted."""
    limit: str = ""
    """The bound at which the last answer was asked for."""
    stopped: Stopped | None = None

    @property
    def total(self) -> Counters:
        """What all conversations of the step have used."""
        return self.before + self.used

    @property
    def is_turn_open(self) -> bool:
        """True between an answer and the end of its turn."""
        return self.answer is not None

    @property
    def open_calls(self) -> tuple[ToolCall, ...]:
        """The turn's calls that have no result yet."""
        return tuple(call for call in self.calls if call.id not in self.results)

    @property
    def is_waiting(self) -> bool:
        """True while people are asked about a call of the turn, a sub-agent's included."""
        return bool(self.asking) or any(child.is_waiting for child in self.children.values())

    def elapsed_ms(self, now_ms: int) -> int:
        """Return how long the run has been at work; waiting for people is none."""
        if self.is_waiting and self.waiting_since_ms:
            now_ms = self.waiting_since_ms
        return now_ms - self.opened_ms - self.waited_ms

    def has_reply(self, call_id: str) -> bool:
        """True if a person has answered about the call since it last began."""
        return call_id in self.replies and call_id not in self.consumed

    @property
    def text(self) -> str:
        """The text of the last answer in the conversation."""
        for message in reversed(self.messages):
            if message["role"] == "assistant":
                return text_of(message["content"])
        return ""


def fold(state: State, entries: Iterable[Entry]) -> State:
    """Return the state after the entries."""
    for entry in entries:
        state = apply(state, entry)
    return state


def apply(state: State, entry: Entry) -> State:
    """Return the state after one more entry."""
    state = _with(state, entries=state.entries + 1)
    match entry:
        case Opened():
            return _opened(state, entry)
        case Heard():
            return _heard(state, entry)
        case Answered():
            return _answered(state, entry)
        case Wasted():
            used = state.used + Counters(usage=entry.usage, cost_micro_usd=entry.cost_micro_usd)
            return _with(state, used=used)
        case Judged():
            asking = asks.still(state.asking, state.calls, entry.calls)
            return _with(state, calls=entry.calls, is_judged=True, asking=asking)
        case Started():
            started = {**state.started, entry.id: entry}
            return _with(state, started=started, consumed=state.consumed | {entry.id})
        case Kept():
            return _kept(state, entry)
        case Settled():
            return _settled(state, entry)
        case Noted():
            journal = state.journal.changed(entry.field, entry.value, append=entry.append)
            return _with(state, journal=journal)
        case Asked():
            asking = asks.asked(state.asking, entry, state.replies)
            return _with(state, asking=asking, waiting_since_ms=entry.at_ms)
        case Escalated():
            return _with(state, asking=asks.escalated(state.asking, entry))
        case Refused():
            asking = asks.refused(state.asking, entry)
            return _with(_seen(state, "reply", entry.seen), asking=asking)
        case Replied():
            return _replied(state, entry)
        case Checked():
            return _with(state, checked=entry)
        case TurnEnded():
            return _turn_ended(state, entry)
        case Compacted():
            return _compacted(state, entry)
        case Switched():
            return _with(
                state, model=entry.model or state.model, thinking=entry.thinking or state.thinking
            )
        case Stopped():
            return _with(_closed(state, ()), stopped=entry)
        case Nested():
            return _nested(state, entry)
        case RoundEnded():
            return _with(state, ended_iteration=entry.iteration, is_round_open=False)
        case _:
            assert_never(entry)


def _opened(state: State, entry: Opened) -> State:
    # Of an earlier conversation stays what must not be counted, heard or named twice.
    state = State(
        entries=state.entries,
        opened_ms=entry.at_ms,
        trace_id=entry.trace_id,
        versions=entry.versions,
        phase=entry.phase,
        carried=entry.carried,
        before=state.total,
        call_ids=state.call_ids,
        kept_bytes=state.kept_bytes,
        seen=state.seen,
    )
    return _said(state, entry.goal)


def _heard(state: State, entry: Heard) -> State:
    if state.answer is not None:
        # The results come first.
        state = _with(state, later=(*state.later, *entry.content))
    else:
        state = _said(state, entry.content)
    if entry.source == "notice":
        watch = state.watch
        if entry.is_malformed:
            watch = msgspec.structs.replace(watch, malformed=watch.malformed + 1)
        return _with(state, limit=entry.limit or state.limit, watch=watch)
    # A person has spoken: what looked like going in circles may be wanted now.
    state = _seen(state, "steer" if entry.source == "steering" else "follow_up", entry.seen)
    stopped = state.stopped
    drifted = stopped.drifted if stopped is not None else None
    retired = stopped.retired if stopped is not None else ()
    return _with(
        state,
        retired=tuple(sorted({*state.retired, *retired})),
        stopped=None,
        waited_ms=state.waited_ms + (_between(stopped.at_ms, entry.at_ms) if stopped else 0),
        limit="",
        # Whoever answers lets the agent go on as it is now.
        versions=drifted or state.versions,
        watch=state.watch.renewed(),
        recovery=state.recovery.renewed(),
    )


def _replied(state: State, entry: Replied) -> State:
    waited_ms = state.waited_ms + _between(state.waiting_since_ms, entry.at_ms)
    return _with(
        _seen(state, "reply", entry.seen),
        asking={id: each for id, each in state.asking.items() if id != entry.call_id},
        replies={**state.replies, entry.call_id: entry},
        consumed=state.consumed - {entry.call_id},
        waited_ms=waited_ms,
        waiting_since_ms=entry.at_ms,
    )


def _between(since_ms: int, until_ms: int) -> int:
    return max(0, until_ms - since_ms) if since_ms else 0


def _answered(state: State, entry: Answered) -> State:
    used = state.used + Counters(
        steps=1, usage=entry.usage + entry.wasted, cost_micro_usd=entry.cost_micro_usd
    )
    content = _unique_ids(state, sendable(entry.content))
    state = _with(
        state,
        used=used,
        call_ids=state.call_ids.union(use["id"] for use in tool_uses(content)),
        is_overfull=entry.stop_reason == "model_context_window_exceeded",
        answer=msgspec.structs.replace(entry, content=content),
        context_tokens=entry.usage.context_tokens,
        added_chars=0,
        watch=msgspec.structs.replace(state.watch, malformed=0),
    )
    if not content:
        return state
    message: Message = {"role": "assistant", "content": content}
    return _with(state, messages=(*state.messages, message))


def _kept(state: State, entry: Kept) -> State:
    kept = with_part(
        state.kept, entry.call_id, entry.tool, entry.size_bytes, entry.part, entry.text
    )
    # With the first part, so that calls side by side cannot both take what is left.
    added = 0 if entry.part else entry.size_bytes
    return _with(state, kept=kept, kept_bytes=state.kept_bytes + added)


def _settled(state: State, entry: Settled) -> State:
    result = entry.result
    is_none = result.status in ("refused", "skipped") or not result.attempts
    ran = 0 if is_none or result.name == FINAL_OUTPUT else 1
    executed = {**state.executed, result.name: state.executed.get(result.name, 0) + ran}
    counted = 0 if result.name in OWN_TOOLS else ran
    return _with(
        state,
        used=state.used + Counters(tool_calls=counted),
        executed=executed,
        results={**state.results, result.id: result},
        children={id: child for id, child in state.children.items() if id != result.id},
    )


def _nested(state: State, entry: Nested) -> State:
    """Apply an entry of a sub-agent; what it used, this agent has used."""
    before = state.children.get(entry.call_id, State())
    after = apply(before, entry.entry)
    # The family waits for people since the last that any of it has done.
    is_answer = isinstance(innermost(entry), Replied)
    waited_ms = _between(state.waiting_since_ms, entry.at_ms) if is_answer else 0
    return _with(
        state,
        waited_ms=state.waited_ms + waited_ms,
        waiting_since_ms=entry.at_ms,
        used=state.used + (after.used - before.used),
        kept_bytes=state.kept_bytes + after.kept_bytes - before.kept_bytes,
        children={**state.children, entry.call_id: after},
        is_round_open=True,
    )


def _turn_ended(state: State, entry: TurnEnded) -> State:
    if bytes(entry.watch):
        state = _with(state, watch=_decode_watch(entry.watch))
    return _with(
        _closed(state, entry.notes),
        turn=state.turn + 1,
        ended_iteration=entry.iteration,
    )


def _closed(state: State, notes: tuple[str, ...]) -> State:
    """Close the open turn: every call of the answer gets a result, in the order of the answer."""
    if state.answer is None:
        return state
    content: list[Block] = [
        _result_block(state.results.get(use["id"]) or _unanswered(state, use))
        for use in tool_uses(state.answer.content)
    ]
    content += [*(earlier.note(note) for note in notes), *state.later]
    state = _with(
        state,
        answer=None,
        calls=(),
        is_judged=False,
        started={},
        results={},
        asking={},
        waiting_since_ms=0,
        replies={},
        consumed=frozenset[str](),
        children={},
        is_round_open=False,
        later=(),
        checked=None,
    )
    return _said(state, content) if content else state


def _unanswered(state: State, use: Block) -> ToolResult:
    id, name = use["id"], use["name"]
    if id in state.started:
        return ToolResult(id=id, name=name, status="cancelled", content=_BEGUN, effect="unknown")
    text = "This call did not run: the run stopped before it."
    return ToolResult(id=id, name=name, status="skipped", content=text)


def _compacted(state: State, entry: Compacted) -> State:
    messages = compaction.replaced(
        list(state.messages), entry.block, entry.dropped, entry.tail_chars_max
    )
    used = state.used + Counters(usage=entry.usage, cost_micro_usd=entry.cost_micro_usd)
    return _with(
        state,
        messages=tuple(messages),
        used=used,
        recovery=state.recovery.fired(entry.stage, state.turn, failed=entry.is_fallback),
        journal_shown=state.journal,
        context_tokens=entry.tokens_after,
        added_chars=0,
        is_overfull=False,
    )


# ------------------------------------------------------------------ content


def _said(state: State, content: list[Block]) -> State:
    """Append what the user side says; the API wants one user message between two answers."""
    added = sum(len(msgspec.json.encode(block)) for block in content)
    state = _with(state, added_chars=state.added_chars + added)
    last = state.messages[-1] if state.messages else None
    if last is not None and last["role"] == "user":
        message: Message = {"role": "user", "content": [*last["content"], *content]}
        return _with(state, messages=(*state.messages[:-1], message))
    message = {"role": "user", "content": content}
    return _with(state, messages=(*state.messages, message))


def sendable(content: list[Block]) -> list[Block]:
    """Return the blocks without empty texts, which the API gives out but does not take back."""
    return [
        block for block in content if block.get("type") != "text" or block.get("text", "").strip()
    ]


def text_of(content: list[Block]) -> str:
    """Return the text blocks, joined."""
    return "\n".join(block["text"] for block in content if block.get("type") == "text").strip()


def tool_uses(content: list[Block]) -> list[Block]:
    """Return the blocks that call a tool of ours."""
    return [block for block in content if block.get("type") == "tool_use"]


def _unique_ids(state: State, content: list[Block]) -> list[Block]:
    """Rename a call's id that the run has had already, the same way on every fold.

    Also one whose call was compacted away: its idempotency key must not serve another call.

    A call that is sent twice, id and all, is one call.
    """
    taken = set(state.call_ids)
    unique: list[Block] = []
    for index, block in enumerate(content):
        if block.get("type") == "tool_use":
            if block in content[:index]:
                continue
            name = str(block.get("id") or f"call_{state.total.steps}_{index}")
            if name in taken:
                name = f"{name}_{state.total.steps}_{index}"
            taken.add(name)
            if name != block.get("id"):
                block = {**block, "id": name}
        unique.append(block)
    return unique


def _seen(state: State, kind: str, position: int) -> State:
    return _with(state, seen={**state.seen, kind: max(position, state.seen.get(kind, 0))})


def _result_block(result: ToolResult) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": result.id, "content": result.content}
    return {**block, "is_error": True} if result.is_error else block


def _with(state: State, **changes: object) -> State:
    return msgspec.structs.replace(state, **changes)
