"""The earlier conversation as one message: how it is written, and how it is read back.

    <earlier_conversation>  what was said, each with the calls made for it
                            <summary>  <latest_result> ...    </earlier_conversation>

Each part is a text block of its own and known by how it begins and ends, so what a person or a
tool wrote inside one is never taken for another. A later compaction reads the parts back: one
such message stands for all that was before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, cast

import msgspec

from treadle.worker.agent.core.conversation import Block, Message

Stage = Literal["compact", "prune", "ask"]
"""
``compact``  summarise, and keep the last messages
``prune``    it did not help for long: keep fewer of them, and cut their results
``ask``      nor did that: a person decides
"""

NOTE = "[runtime] "
"""Begins what the runtime says to the model, so that it is not kept as a person's words."""


class Asked(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a person said at one point, and the calls that were made for it."""

    content: list[Block]
    calls: tuple[str, ...] = ()
    """One line each."""


class Pinned(msgspec.Struct, frozen=True):
    """The latest successful result of a tool."""

    tool: str
    text: str


class Earlier(msgspec.Struct):
    """What an earlier compaction has left."""

    asked: list[Asked] = []
    pinned: list[Pinned] = []
    summary: str = ""


def note(text: str) -> Block:
    """Return a text of the runtime for the model, told apart from a person's words."""
    return {"type": "text", "text": f"{NOTE}{text}"}


_OPEN, _CLOSE = "<earlier_conversation", "</earlier_conversation>"
_SAID = ("<said>\n", "\n</said>")
_CALLS = ("<calls_made>\n", "\n</calls_made>")
_SUMMARY = ("<summary>\n", "\n</summary>")
_RESULT = ('<latest_result tool="', "\n</latest_result>")
_HEADERS: dict[Stage, str] = {
    "compact": f"{_OPEN}>\nThe conversation up to here was compacted. ",
    "prune": f'{_OPEN} deep_pruned="true">\nThe conversation up to here was compacted hard. ',
}
_HEADER_END = (
    "What was said is verbatim, each with the calls that were made for it: what was done is done, "
    "so do not do it again. The latest results still hold as far as nothing has changed since."
)
_FOOTER = (
    f"{_CLOSE}\nGo on from here. Approvals and questions that are not in the messages below are "
    "not open."
)


def written(
    asked: Sequence[Asked], summary: str, pinned: Sequence[Pinned], stage: Stage
) -> list[Block]:
    """Return the content of the message."""
    texts: list[Block] = [_text((_HEADERS.get(stage) or _HEADERS["compact"]) + _HEADER_END)]
    for turn in asked:
        texts += [
            _text(_SAID[0] + each["text"] + _SAID[1]) if is_text(each) else each
            for each in turn.content
        ]
        if turn.calls:
            texts.append(_text(_CALLS[0] + "\n".join(turn.calls) + _CALLS[1]))
    texts.append(_text(_SUMMARY[0] + summary.strip() + _SUMMARY[1]))
    texts += [_text(f'{_RESULT[0]}{pin.tool}">\n{pin.text}{_RESULT[1]}') for pin in pinned]
    return [*texts, _text(_FOOTER)]


def parsed(message: Message) -> Earlier:
    """Return what the block at the beginning of the message says; empty without one."""
    found = Earlier()
    content: list[Block] = message["content"]
    for each in content[1 : max(0, _end_of_block(message) - 1)]:
        text = str(each.get("text", ""))
        if not is_text(each):
            _said(found, each)
        elif (said := _within_tags(text, _SAID)) is not None:
            _said(found, _text(said))
        elif (calls := _within_tags(text, _CALLS)) is not None:
            last = found.asked.pop() if found.asked else Asked([])
            found.asked.append(Asked(last.content, tuple(calls.split("\n"))))
        elif (summary := _within_tags(text, _SUMMARY)) is not None:
            found.summary = summary
        elif (pin := _within_tags(text, _RESULT)) is not None:
            tool, _, result = pin.partition('">\n')
            found.pinned.append(Pinned(tool, result))
    return found


def _end_of_block(message: Message) -> int:
    """Return how many blocks at the beginning of the message a compaction has made."""
    content: list[Block] = message["content"]
    if not content or not str(content[0].get("text", "")).startswith(_OPEN):
        return 0
    for i, each in enumerate(content):
        if str(each.get("text", "")).startswith(_CLOSE):
            return i + 1
    return 0


def new_blocks(message: Message) -> list[Block]:
    """Return the blocks of the message that no earlier compaction has made."""
    content: list[Block] = message["content"]
    return content[_end_of_block(message) :]


def words_of(message: Message) -> list[Block]:
    """Return what a person says in the message."""
    if message["role"] != "user":
        return []
    return [
        block
        for block in new_blocks(message)
        if block.get("type") != "tool_result" and not is_note(block)
    ]


def uses_of(message: Message) -> list[Block]:
    """Return the calls of the message."""
    return [block for block in message["content"] if block.get("type") == "tool_use"]


def text_of(content: object) -> str:
    """Return a result's or a message's content as text; media are named only."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return ""
    return "\n".join(
        str(block["text"]) if block.get("type") == "text" else f"[{block.get('type')}]"
        for block in cast("list[Block]", content)
    )


def has_results(message: Message) -> bool:
    """Return True if the message answers calls."""
    return any(block.get("type") == "tool_result" for block in message["content"])


def is_text(block: Block) -> bool:
    """Return True for a text block."""
    return block.get("type") == "text"


def is_note(block: Block) -> bool:
    """Return True for a text of the runtime."""
    return block.get("type") == "text" and str(block["text"]).startswith(NOTE)


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _said(found: Earlier, each: Block) -> None:
    if found.asked and not found.asked[-1].calls:
        found.asked[-1] = Asked([*found.asked[-1].content, each])
    else:
        found.asked.append(Asked([each]))


def _within_tags(text: str, tags: tuple[str, str]) -> str | None:
    if not text.startswith(tags[0]) or not text.endswith(tags[1]):
        return None
    return text[len(tags[0]) : len(text) - len(tags[1])]
