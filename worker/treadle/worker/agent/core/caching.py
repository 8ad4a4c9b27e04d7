"""Cache markers: where a request says "up to here it is as before".

    tools ── last tool   system ── last block   messages ── the last two of the user side

Four at most, which is what the API takes. The one before the last stands where the previous
request had its last, so that what was written then is read now, however much was added.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import msgspec

from treadle.worker.agent.core.conversation import Block, Message, ModelRequest

MARKERS_MAX = 4
MARKER = {"type": "ephemeral"}
_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})
_TAIL = 2


def mark(request: ModelRequest) -> ModelRequest:
    """Return the request with markers at the places above, and at no others."""
    messages = [_plain_message(message) for message in request.messages]
    marked = 0
    for index in range(len(messages) - 1, -1, -1):
        if marked == _TAIL:
            break
        if messages[index]["role"] != "user":
            continue
        content = _with_last_marked(messages[index]["content"])
        if content is not None:
            messages[index] = {**messages[index], "content": content}
            marked += 1
    system = [_plain(block) for block in request.system]
    tools = [_plain(tool) for tool in request.tools]
    return msgspec.structs.replace(
        request,
        messages=messages,
        system=_with_last_marked(system) or system,
        tools=_with_last_marked(tools) or tools,
    )


def count(request: ModelRequest) -> int:
    """Return the markers of the request as it is sent: a block that stands twice counts twice."""
    return sum(1 for block in _blocks(request) if "cache_control" in block)


def prefix(request: ModelRequest) -> bytes:
    """Return what the last marker says is as before, in the order in which the API reads it.

    Without the markers themselves: moving one changes nothing of what is cached.
    """
    blocks = list(_blocks(request))
    marked = [index for index, block in enumerate(blocks) if "cache_control" in block]
    end = marked[-1] + 1 if marked else 0
    return b"".join(msgspec.json.encode(_plain(block)) + b"\n" for block in blocks[:end])


def _blocks(request: ModelRequest) -> Iterator[Block]:
    yield from request.tools
    yield from request.system
    for message in request.messages:
        for block in message["content"]:
            yield from _inner(block)
            yield block


def _inner(block: Block) -> Iterator[Block]:
    content: Any = block.get("content") if block.get("type") == "tool_result" else None
    if isinstance(content, list):
        yield from cast("list[Block]", content)


def _plain(block: Block) -> Block:
    """Return the block without markers, its own and those of blocks within."""
    if any("cache_control" in inner for inner in _inner(block)):
        block = {**block, "content": [_plain(inner) for inner in block["content"]]}
    if "cache_control" not in block:
        return block
    return {key: value for key, value in block.items() if key != "cache_control"}


def _plain_message(message: Message) -> Message:
    content: list[Block] = message["content"]
    plain = [_plain(block) for block in content]
    if all(after is before for after, before in zip(plain, content, strict=True)):
        return message
    return {**message, "content": plain}


def _with_last_marked(blocks: list[Block]) -> list[Block] | None:
    for index in range(len(blocks) - 1, -1, -1):
        if blocks[index].get("type") not in _UNMARKABLE:
            marked = {**blocks[index], "cache_control": dict(MARKER)}
            return [*blocks[:index], marked, *blocks[index + 1 :]]
    return None
