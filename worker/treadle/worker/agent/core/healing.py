"""Mends a conversation that the API would refuse, changing as little as it can.

    clean each block ── merge the user's ── unique ids ── one result per call, results first

A history can be broken by a crash, by another program that wrote it, or by a hook. Healing is a
pure function of it: the same history heals alike on every replay, what stands before is never
healed otherwise because of what comes after, and a healed history is left alone. What was
said in thinking is signed, so it is kept as it is or, if no JSON can hold it, left out whole.
"""

from __future__ import annotations

import re
from typing import Any, cast

import msgspec

from treadle.worker.agent.core import tokens
from treadle.worker.agent.core.conversation import Block, Message
from treadle.worker.agent.core.rules import CALL_ID
from treadle.worker.agent.tools.canonical import well_formed_json

RESULT_CHARS_MAX = 40_000
"""Of one result in a history; tools have bounds of their own when they run."""
INTERRUPTED = (
    "This call was interrupted: it has no result. It may or may not have taken effect; check "
    "before you issue it again."
)
NO_OUTPUT = "(no output)"
OPENING = "(The messages before this one are not available.)"
_REASONING = frozenset({"thinking", "redacted_thinking"})
_MISPLACED: dict[str, frozenset[str | None]] = {
    "user": frozenset({"tool_use", *_REASONING, None}),
    "assistant": frozenset({"tool_result", None}),
}
_NO_NAME_CHARS = re.compile(r"[^a-zA-Z0-9_-]")
_NAME_CHARS_MAX = 64


class Healed(msgspec.Struct, frozen=True):
    """A conversation the API takes, and what was done for it."""

    messages: list[Message]
    repairs: tuple[str, ...] = ()
    """One sentence each, with the index of the message as it was; for the log."""


def heal(messages: list[Message]) -> Healed:
    """Return the conversation mended; ``repairs`` is empty if there was nothing to mend."""
    repairs: list[str] = []
    healed = _paired(_merged(messages, repairs), repairs)
    if healed and healed[0]["role"] != "user":
        repairs.append("messages[0]: the first message was not the user's; one was put before it")
        healed.insert(0, {"role": "user", "content": [{"type": "text", "text": OPENING}]})
    return Healed(healed, tuple(repairs))


# ------------------------------------------------------------------ block by block


def _merged(messages: list[Message], repairs: list[str]) -> list[tuple[int, Message]]:
    """Return the messages cleaned, without empty ones, the user's in a row as one."""
    said: list[tuple[int, Message]] = []
    for i, message in enumerate(messages):
        role = message["role"]
        content = _clean_content(message.get("content"), role, f"messages[{i}]", repairs)
        if not content:
            repairs.append(f"messages[{i}]: nothing was left of it, so it was dropped")
            continue
        if said and role == said[-1][1]["role"] == "user":
            repairs.append(f"messages[{i}]: joined to the message of the user before it")
            index, before = said[-1]
            said[-1] = (index, {"role": role, "content": [*before["content"], *content]})
        else:
            said.append((i, {"role": role, "content": content}))
    return said


def _clean_content(content: Any, role: str, path: str, repairs: list[str]) -> list[Block]:
    if isinstance(content, str):
        repairs.append(f"{path}: the content was a text, not a list of blocks")
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list):
        return []
    cleaned: list[Block] = []
    for block in cast("list[Block]", content):
        if block.get("type") in _MISPLACED[role]:
            repairs.append(f"{path}: a {block.get('type')} of the {role} was left out")
            continue
        kept = _clean(block, path, repairs)
        if kept is not None:
            cleaned.append(kept)
    return cleaned


def _clean(block: Block, path: str, repairs: list[str]) -> Block | None:
    """Return the block as JSON can hold it, or ``None`` to leave it out."""
    kind = block.get("type")
    if not _is_well_formed(block):
        if kind in _REASONING:
            repairs.append(f"{path}: {kind} with a lone surrogate was left out")
            return None
        repairs.append(f"{path}: lone surrogates of a {kind} were replaced")
        try:
            block = cast("Block", well_formed_json(block))
        except ValueError:
            return None
    if kind == "text" and not str(block.get("text", "")).strip():
        repairs.append(f"{path}: an empty text was left out")
        return None
    if kind == "tool_use":
        return _clean_use(block, path, repairs)
    if kind == "tool_result":
        return _clean_result(block, path, repairs)
    return block


def _is_well_formed(block: Block) -> bool:
    try:
        msgspec.json.encode(block)
    except UnicodeEncodeError:
        return False
    except (TypeError, RecursionError):
        return True  # No text to mend: the rules name what it is.
    return True


def _clean_use(block: Block, path: str, repairs: list[str]) -> Block:
    name = str(block.get("name") or "unnamed")
    allowed = _NO_NAME_CHARS.sub("_", name)[:_NAME_CHARS_MAX]
    if allowed != block.get("name"):
        repairs.append(f"{path}: the call of {name!r} is now of {allowed!r}")
        block = {**block, "name": allowed}
    if not isinstance(block.get("input"), dict):
        repairs.append(f"{path}: the input of {allowed!r} was no object")
        block = {**block, "input": {}}
    return block


def _clean_result(block: Block, path: str, repairs: list[str]) -> Block:
    content: Any = block.get("content")
    call_id = block.get("tool_use_id")
    if isinstance(content, list):
        cleaned = _clean_content(content, "user", f"{path}, result of {call_id!r}", repairs)
        within = _bounded(cleaned)
        if within != cleaned:
            repairs.append(f"{path}: the result of {call_id!r} was cut")
        if within != content:
            content = within
    elif isinstance(content, str):
        within_text = tokens.cut(content, RESULT_CHARS_MAX)
        if within_text != content:
            repairs.append(f"{path}: the result of {call_id!r} was cut")
        content = within_text
    if not content or (isinstance(content, str) and not content.strip()):
        repairs.append(f"{path}: the empty result of {call_id!r} says so now")
        content = NO_OUTPUT
    return block if content is block.get("content") else {**block, "content": content}


def _bounded(blocks: list[Block]) -> list[Block]:
    """Return the blocks with at most ``RESULT_CHARS_MAX`` characters of text in all."""
    left = RESULT_CHARS_MAX
    kept: list[Block] = []
    for block in blocks:
        if block.get("type") == "text":
            text = tokens.cut(block["text"], left)
            left -= len(text)
            if not text.strip():
                continue
            block = block if text == block["text"] else {**block, "text": text}
        kept.append(block)
    return kept


# ------------------------------------------------------------------ calls and results


def _paired(said: list[tuple[int, Message]], repairs: list[str]) -> list[Message]:
    """Return the messages with unique ids, and every call answered once and in its place."""
    messages: list[Message] = []
    taken: set[str] = set()
    open_calls: list[tuple[str, str]] = []  # the id as it was, and as it is
    for index, message in said:
        path = f"messages[{index}]"
        if message["role"] == "assistant":
            content, calls = _with_unique_ids(message["content"], taken, path, repairs)
            open_calls += calls
            messages.append({**message, "content": content})
            continue
        content = _answered(message["content"], open_calls, path, repairs)
        open_calls = []
        if content:
            messages.append({**message, "content": content})
    if open_calls:
        where = f"messages[{said[-1][0]}]"
        messages.append({"role": "user", "content": _answered([], open_calls, where, repairs)})
    return messages


def _with_unique_ids(
    content: list[Block], taken: set[str], path: str, repairs: list[str]
) -> tuple[list[Block], list[tuple[str, str]]]:
    renamed: list[Block] = []
    calls: list[tuple[str, str]] = []
    for block in content:
        if block.get("type") == "tool_use":
            was = str(block.get("id") or "")
            now = _free_id(was, taken)
            taken.add(now)
            calls.append((was, now))
            if now != block.get("id"):
                repairs.append(f"{path}: the call {was!r} is now {now!r}")
                block = {**block, "id": now}
        renamed.append(block)
    return renamed, calls


def _free_id(was: str, taken: set[str]) -> str:
    """Return the id, or the first variant of it that no call before has."""
    base = was if CALL_ID.fullmatch(was) else _NO_NAME_CHARS.sub("_", was) or "call"
    number, now = 2, base
    while now in taken:
        now = f"{base}_{number}"
        number += 1
    return now


def _answered(
    content: list[Block], open_calls: list[tuple[str, str]], path: str, repairs: list[str]
) -> list[Block]:
    """Return the content with one result for each open call, before everything else."""
    left = list(open_calls)
    results: list[Block] = []
    others: list[Block] = []
    for block in content:
        if block.get("type") == "tool_result":
            was = block.get("tool_use_id")
            call = next((each for each in left if each[0] == was), None)
            if call is None:
                repairs.append(f"{path}: the result for {was!r} answers no open call; dropped")
                continue
            left.remove(call)
            if others:
                repairs.append(f"{path}: the result for {was!r} was moved to the front")
            results.append(block if call[1] == was else {**block, "tool_use_id": call[1]})
        else:
            others.append(block)
    for _, now in left:
        repairs.append(f"{path}: the call {now!r} had no result; it is marked as interrupted")
        results.append(
            {"type": "tool_result", "tool_use_id": now, "content": INTERRUPTED, "is_error": True}
        )
    return [*results, *others]
