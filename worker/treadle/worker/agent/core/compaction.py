"""Making room: when the conversation is compacted, what stays, and what stands for the rest.

    messages = head ++ tail        tail stays as it is (over-long results cut)
    head     = what was asked      verbatim, with the calls that were made for it
               what was found      the latest successful result of each tool
               all else            a summary (see ``summary``)

One user message stands for the head and for every head before it. A request and what was done
for it never part, and a call never parts from its result. Nothing here calls a model.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from treadle.worker.agent.core import tokens
from treadle.worker.agent.core.conversation import Block, Message
from treadle.worker.agent.core.earlier import (
    Asked,
    Pinned,
    Stage,
    has_results,
    is_note,
    is_text,
    new_blocks,
    parsed,
    text_of,
    uses_of,
    words_of,
    written,
)

RESULT_TOKENS_MAX = 3_000
"""Of one pinned result; of each result kept by a prune."""
RESULT_TOKENS_TIGHT = 1_000
"""The same when what stays fills more than ``TIGHT_SHARE`` of the window."""
TIGHT_SHARE = 0.60
OVERSIZE_SHARE = 0.25
"""Share of the window above which one result of the tail is cut even by a mere compaction."""
PINNED_SHARE = 0.15
ASKED_SHARE = 0.20
"""Shares of the window for all pinned results, and for all that was asked."""
TURNS_MAX = 50
"""User turns kept verbatim: the first, and the last ones."""
CALLS_MAX = 20
"""Calls listed for one user turn, the last ones."""
CALL_CHARS_MAX = 160
ASKED_CHARS_MIN = 500
"""A user turn is never cut shorter than this."""

ASK_TEXT = (
    "The agent has made progress, but fills its context window faster than it can be cleared. Go "
    "on as before, change direction, or stop here?"
)


class CompactionPolicy(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """When and how far a conversation is compacted."""

    trigger: float = 0.70
    """Share of the window at which it begins."""
    keep: int = 10
    """Messages a compaction leaves as they are."""
    deep_keep: int = 4
    """Messages a prune leaves."""
    forced_final: float = 0.92
    """Share at which, if nothing helps any more, the last answer is asked for."""
    cap: int = 4
    """Recoveries between two inputs of a person."""
    window_iterations: int = 20
    """Turns within which the next recovery is one stage further."""
    summary_max_tokens: int = 0
    """Of a summary; 0 is a fifth of what it stands for, within bounds."""
    breaker: int = 3
    """Failed summaries in a row after which none is asked for."""

    def problems(self) -> list[str]:
        """Return what is wrong with the numbers."""
        found: list[str] = []
        if not 0 < self.trigger < self.forced_final <= 1:
            found.append(
                f"compaction: trigger is {self.trigger} and forced_final {self.forced_final}; both "
                "are shares of the window, and trigger is the smaller one"
            )
        if not 1 <= self.deep_keep <= self.keep:
            found.append(
                f"compaction: keep is {self.keep} and deep_keep {self.deep_keep}; both must be 1 "
                "or more, and deep_keep not the larger one"
            )
        found += [
            f"compaction: {name} is {value}; it must be {least} or more"
            for name, value, least in (
                ("cap", self.cap, 0),
                ("window_iterations", self.window_iterations, 0),
                ("summary_max_tokens", self.summary_max_tokens, 0),
                ("breaker", self.breaker, 1),
            )
            if value < least
        ]
        return found


class Recovery(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was done for room since a person last spoke."""

    compactions: int = 0
    prunes: int = 0
    asks: int = 0
    last_stage: Stage | None = None
    last_iteration: int = 0
    failures: int = 0
    """Summaries in a row that failed."""

    @property
    def total(self) -> int:
        """All recoveries."""
        return self.compactions + self.prunes + self.asks

    def fired(self, stage: Stage, iteration: int, *, failed: bool = False) -> Recovery:
        """Return the counters after one more; ``failed`` if its summary was a fallback."""
        return Recovery(
            compactions=self.compactions + (stage == "compact"),
            prunes=self.prunes + (stage == "prune"),
            asks=self.asks + (stage == "ask"),
            last_stage=stage,
            last_iteration=iteration,
            failures=self.failures + 1 if failed else 0,
        )

    def renewed(self) -> Recovery:
        """Return the counters after a person has spoken."""
        return Recovery()


def next_stage(
    policy: CompactionPolicy, recovery: Recovery, tokens: int, window: int, iteration: int
) -> Stage | None:
    """Return what is due for a conversation of so many tokens, or ``None``."""
    if tokens < policy.trigger * window or recovery.total >= policy.cap:
        return None
    is_recent = iteration - recovery.last_iteration <= policy.window_iterations
    if recovery.last_stage is None or not is_recent:
        return "compact"
    return "prune" if recovery.last_stage == "compact" else "ask"


def may_summarise(policy: CompactionPolicy, recovery: Recovery) -> bool:
    """Return False when summaries have failed too often: ``fallback`` serves without a call."""
    return recovery.failures < policy.breaker


# ------------------------------------------------------------------ the plan


class Plan(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a compaction does to a conversation."""

    head: list[Message] = []
    """To be replaced; ``Compacted.dropped`` is its length."""
    tail: list[Message] = []
    """To stay, over-long results cut: ``trim`` with ``tail_chars_max``."""
    tail_chars_max: int = 0
    """Bound of one result in the tail; 0 if none was longer."""
    asked: tuple[Asked, ...] = ()
    pinned: tuple[Pinned, ...] = ()
    earlier: str = ""
    """The summary that an earlier compaction left at the beginning of the head."""

    @property
    def is_useful(self) -> bool:
        """True if it changes anything."""
        return bool(self.head) or self.tail_chars_max > 0


def plan(messages: list[Message], *, keep: int, window: int, stage: Stage = "compact") -> Plan:
    """Return what stays of the messages and what is summarised, for a window of tokens.

    If keeping so many frees nothing, fewer are kept, and at last all results are cut.
    """
    keeps = [each for each in (keep, keep // 2, 2) if each >= 1]
    for each, bound_by in [*((each, stage) for each in keeps), (1, "prune")]:
        made = _planned(messages, each, window, bound_by == "prune")
        if made.is_useful:
            return made
    return Plan(tail=messages)


def _planned(messages: list[Message], keep: int, window: int, is_deep: bool) -> Plan:
    border = _border(messages, keep)
    head, rest = messages[:border], messages[border:]
    if all(is_note(each) for message in head for each in new_blocks(message)):
        head, rest = [], messages  # Only what was compacted before: nothing would be won.
    is_tight = tokens.estimate(rest) > TIGHT_SHARE * window
    result_chars = tokens.to_chars(RESULT_TOKENS_TIGHT if is_tight else RESULT_TOKENS_MAX)
    bound = result_chars if is_deep else tokens.to_chars(int(OVERSIZE_SHARE * window))
    tail = trim(rest, bound)
    return Plan(
        head=head,
        tail=tail,
        tail_chars_max=0 if tail == rest else bound,
        asked=_asked(head, window),
        pinned=_pinned(head, rest, result_chars, window),
        earlier=_earlier(head),
    )


def trim(messages: list[Message], result_chars_max: int) -> list[Message]:
    """Return the messages with longer results cut in the middle; 0 cuts none."""
    if not result_chars_max:
        return messages
    return [
        {**message, "content": [_trimmed(block, result_chars_max) for block in message["content"]]}
        if has_results(message)
        else message
        for message in messages
    ]


def _trimmed(block: Block, chars_max: int) -> Block:
    content: Any = block.get("content")
    if block.get("type") != "tool_result" or not content:
        return block
    if isinstance(content, str):
        return {**block, "content": tokens.cut(content, chars_max)}
    inner = [
        {**each, "text": tokens.cut(each["text"], chars_max)}
        if each.get("type") == "text"
        else each
        for each in cast("list[Block]", content)
    ]
    return {**block, "content": inner}


def replaced(
    messages: list[Message], block: list[Block], dropped: int, tail_chars_max: int = 0
) -> list[Message]:
    """Return the messages after a compaction: the block stands for the first ``dropped``."""
    tail = trim(messages[dropped:], tail_chars_max)
    if not block:
        return tail
    if tail and tail[0]["role"] == "user":
        return [{"role": "user", "content": [*block, *tail[0]["content"]]}, *tail[1:]]
    return [{"role": "user", "content": block}, *tail]


def _border(messages: list[Message], keep: int) -> int:
    """Return where the tail begins: the last place with ``keep`` messages behind it that may be.

    No call stands before it with its result behind it. Nor is a request of a person parted from
    the answer to it, which would look as if nothing had been done for it; nor is an answer that
    was paused from its continuation.
    """
    found = 0
    open_ids: set[str] = set()
    for i, message in enumerate(messages[: max(0, len(messages) - keep) + 1]):
        if i and not open_ids and message["role"] == "user":
            found = i
        elif i and not open_ids and messages[i - 1]["role"] == "user":
            is_request = words_of(messages[i - 1]) and not has_results(messages[i - 1])
            found = found if is_request else i
        for block in message["content"]:
            if block.get("type") == "tool_use":
                open_ids.add(block["id"])
            elif block.get("type") == "tool_result":
                open_ids.discard(block["tool_use_id"])
    return found


def block(plan: Plan, summary: str, *, stage: Stage) -> list[Block]:
    """Return the content of the one message that stands for the head and all heads before."""
    return written(plan.asked, summary, plan.pinned, stage)


# ------------------------------------------------------------------ what the head holds


def _results_by_id(messages: list[Message]) -> dict[str, Block]:
    return {
        block["tool_use_id"]: block
        for message in messages
        for block in message["content"]
        if block.get("type") == "tool_result"
    }


def _asked(head: list[Message], window: int) -> tuple[Asked, ...]:
    results = _results_by_id(head)
    turns: list[Asked] = list(parsed(head[0]).asked) if head else []
    for message in head:
        if words := words_of(message):
            turns.append(Asked(words))
        calls = [_call_line(use, results.get(use["id"])) for use in uses_of(message)]
        if calls:
            last = turns.pop() if turns else Asked([])
            turns.append(Asked(last.content, (*last.calls, *calls)[-CALLS_MAX:]))
    if len(turns) > TURNS_MAX:
        turns = [turns[0], *turns[1 - TURNS_MAX :]]
    return tuple(_within(turns, tokens.to_chars(int(ASKED_SHARE * window))))


def _call_line(use: Block, result: Block | None) -> str:
    arguments = msgspec.json.encode(use["input"]).decode()
    if result is None:
        state = "no result"
    else:
        state = "failed" if result.get("is_error") else "done"
    flat = " ".join(f"{use['name']}({arguments})".split())
    return f"{tokens.cut(flat, CALL_CHARS_MAX).replace(chr(10), ' ')}: {state}"


def _within(turns: list[Asked], chars_max: int) -> Iterator[Asked]:
    """Yield the turns, the longest texts cut so that all of them fit."""
    lengths = sorted(
        len(block["text"]) for turn in turns for block in turn.content if is_text(block)
    )
    bound, left = max(lengths, default=0), chars_max
    for position, length in enumerate(lengths):
        share = left // (len(lengths) - position)
        if length > share:
            bound = max(share, ASKED_CHARS_MIN)
            break
        left -= length
    for turn in turns:
        content = [
            {**block, "text": tokens.cut(block["text"], bound)} if is_text(block) else block
            for block in turn.content
        ]
        yield Asked(content, turn.calls)


def _pinned(
    head: list[Message], rest: list[Message], chars_max: int, window: int
) -> tuple[Pinned, ...]:
    """Return the latest success of each tool in the head, unless the tail has a later one."""
    if not head:
        return ()
    latest = {pin.tool: pin.text for pin in parsed(head[0]).pinned}
    for tool, text in _successes(head):
        latest.pop(tool, None)  # The latest one comes last.
        latest[tool] = text
    for tool, _ in _successes(rest):
        latest.pop(tool, None)
    pins: list[Pinned] = []
    left = tokens.to_chars(int(PINNED_SHARE * window))
    for tool, text in reversed(latest.items()):
        text = tokens.cut(text, min(chars_max, left))
        left -= len(text)
        if text.strip():
            pins.append(Pinned(tool, text))
    return tuple(reversed(pins))


def _successes(messages: list[Message]) -> Iterator[tuple[str, str]]:
    names = {use["id"]: use["name"] for message in messages for use in uses_of(message)}
    for message in messages:
        for block in message["content"]:
            if block.get("type") != "tool_result" or block.get("is_error"):
                continue
            if name := names.get(block["tool_use_id"]):
                yield name, text_of(block.get("content"))


def _earlier(head: list[Message]) -> str:
    return parsed(head[0]).summary if head else ""
