"""What the Messages API takes, checked before anything is sent.

Each rule here is one the API answers with 400. A request that breaks one is a fault of ours or
of a hook: it is never sent, and never repeated. Read next: ``healing``, which mends histories.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any, cast

from treadle.sdk.errors import TreadleError
from treadle.worker.agent.core import caching, tokens
from treadle.worker.agent.core.conversation import Block, Message, ModelRequest

TOOL_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
CALL_ID = re.compile(r"[a-zA-Z0-9_-]+")
DEPTH_MAX = 200
"""Deeper JSON overflows the stack of common parsers."""
CERTAIN_SHARE = 0.5
"""An estimate is off by less than half: what fills the window twice over cannot fit."""
_USER_ONLY = frozenset({"tool_result"})
_ASSISTANT_ONLY = frozenset({"tool_use", "thinking", "redacted_thinking"})
_REASONING = frozenset({"thinking", "redacted_thinking"})
_SURROGATE = re.compile("[\ud800-\udfff]")


class InvalidRequest(TreadleError):
    """A request that the API would refuse; ``problems`` has every reason."""

    def __init__(self, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(
            f"the request breaks {len(problems)} of the API's rules, so it is not sent: "
            f"{'; '.join(problems)}. If a hook changed the messages, mend it or heal its result; "
            "otherwise please report this."
        )


def validate_request(
    request: ModelRequest, *, context_window: int | None = None, continues: bool = False
) -> None:
    """Raise ``InvalidRequest`` unless the API takes the request."""
    found = problems(request, context_window=context_window, continues=continues)
    if found:
        raise InvalidRequest(found)


def problems(
    request: ModelRequest, *, context_window: int | None = None, continues: bool = False
) -> list[str]:
    """Return the rules the request breaks, each with the place; empty if it can be sent.

    ``continues`` says that the last answer was paused: it stands last and goes back as it is.
    """
    unsendable = list(_unsendable(request))
    if unsendable:
        return unsendable  # The rest of the rules reads well-formed JSON.
    misshapen = list(_misshapen(request.messages))
    if misshapen:
        return misshapen
    return [
        *_order(request.messages, continues=continues),
        *_contents(request),
        *_pairs(request.messages),
        *_tools(request),
        *_reasoning(request),
        *_bounds(request, context_window),
    ]


# ------------------------------------------------------------------ JSON


def _unsendable(request: ModelRequest) -> Iterator[str]:
    for name in ("system", "messages", "tools", "tool_choice", "stop_sequences", "metadata"):
        yield from _no_json(getattr(request, name), name)


def _no_json(value: object, root: str) -> Iterator[str]:
    """Yield the places that cannot be sent as JSON in UTF-8."""
    left: list[tuple[object, str, int]] = [(value, root, 0)]
    while left:
        item, path, depth = left.pop()
        if depth > DEPTH_MAX:
            yield f"{path[:80]}: nested deeper than {DEPTH_MAX} levels"
            return
        if isinstance(item, str):
            if _SURROGATE.search(item):
                yield f"{path}: the text holds half a character (a lone surrogate)"
        elif isinstance(item, float):
            if not math.isfinite(item):
                yield f"{path}: {item} is no number of JSON"
        elif isinstance(item, dict):
            for key, inner in cast("dict[object, object]", item).items():
                if not isinstance(key, str) or _SURROGATE.search(key):
                    yield f"{path}: the key {key!r} is no text of JSON"
                else:
                    left.append((inner, f"{path}.{key}", depth + 1))
        elif isinstance(item, (list, tuple)):
            for index, inner in enumerate(cast("list[object]", item)):
                left.append((inner, f"{path}[{index}]", depth + 1))
        elif item is not None and not isinstance(item, (bool, int)):
            yield f"{path}: a {type(item).__name__} is no JSON value"


def _misshapen(messages: list[Message]) -> Iterator[str]:
    for i, message in enumerate(messages):
        if message.get("role") not in ("user", "assistant"):
            yield f"messages[{i}]: the role is {message.get('role')!r}, not user or assistant"
        content = message.get("content")
        if not isinstance(content, list):
            yield f"messages[{i}]: the content is no list of blocks"
            continue
        for j, block in enumerate(cast("list[object]", content)):
            yield from _misshapen_block(block, f"messages[{i}].content[{j}]")


def _misshapen_block(block: object, path: str) -> Iterator[str]:
    typed = cast("Block", block) if isinstance(block, dict) else {}
    kind = typed.get("type")
    if not isinstance(kind, str):
        yield f"{path}: a block is an object with a type"
        return
    needed: dict[str, dict[str, type]] = {
        "text": {"text": str},
        "tool_use": {"id": str, "name": str, "input": dict},
        "tool_result": {"tool_use_id": str},
        "thinking": {"thinking": str},
        "redacted_thinking": {"data": str},
    }
    for name, wanted in needed.get(kind, {}).items():
        if not isinstance(typed.get(name), wanted):
            yield f"{path}: {kind} needs {name}, a {wanted.__name__}"
    content = typed.get("content", "")
    if kind == "tool_result" and not isinstance(content, str):
        items = cast("list[object]", content) if isinstance(content, list) else [None]
        if not all(isinstance(item, dict) for item in items):
            yield f"{path}: the content of a result is a text or a list of blocks"


# ------------------------------------------------------------------ messages


def _order(messages: list[Message], *, continues: bool) -> Iterator[str]:
    if not messages:
        yield "messages: there is none; the first is the user's"
        return
    if messages[0]["role"] != "user":
        yield "messages[0]: the first message is the user's"
    for i in range(1, len(messages)):
        # Two answers in a row are one that was paused; two of the user's never are.
        if messages[i]["role"] == messages[i - 1]["role"] == "user":
            yield f"messages[{i}]: two messages of the user in a row; they have to be one"
    last = messages[-1]
    if last["role"] == "assistant" and not continues and not _is_paused(last):
        yield f"messages[{len(messages) - 1}]: the last message is the user's"


def _is_paused(message: Message) -> bool:
    return any(block["type"] == "server_tool_use" for block in message["content"])


def _contents(request: ModelRequest) -> Iterator[str]:
    for i, block in enumerate(request.system):
        yield from _empty(block, f"system[{i}]")
    for i, message in enumerate(request.messages):
        if not message["content"]:
            yield f"messages[{i}]: the content is empty"
        misplaced = _USER_ONLY if message["role"] == "assistant" else _ASSISTANT_ONLY
        for j, block in enumerate(message["content"]):
            path = f"messages[{i}].content[{j}]"
            if block["type"] in misplaced:
                yield f"{path}: {block['type']} cannot stand in a message of the {message['role']}"
            if block["type"] in _REASONING and "cache_control" in block:
                yield f"{path}: {block['type']} takes no cache_control"
            yield from _empty(block, path)
            if block["type"] == "tool_result":
                yield from _empty_result(block, path)


def _empty_result(block: Block, path: str) -> Iterator[str]:
    content = block.get("content", "")
    if block.get("is_error") and not content:
        yield f"{path}: an error without content"
    if isinstance(content, list):
        for k, inner in enumerate(cast("list[Block]", content)):
            yield from _empty(inner, f"{path}.content[{k}]")


def _empty(block: Block, path: str) -> Iterator[str]:
    if block.get("type") == "text" and not str(block.get("text", "")).strip():
        yield f"{path}: the text is empty or blank"


def _pairs(messages: list[Message]) -> Iterator[str]:
    """Every call is answered once, in what the user says next, before anything else in it."""
    seen: set[str] = set()
    open_ids: list[str] = []
    for i, message in enumerate(messages):
        if message["role"] == "assistant":
            for block in message["content"]:
                if block["type"] == "tool_use":
                    if block["id"] in seen:
                        yield f"messages[{i}]: the id {block['id']!r} of a call is not unique"
                    elif not CALL_ID.fullmatch(block["id"]):
                        yield f"messages[{i}]: {block['id']!r} is no id of a call"
                    seen.add(block["id"])
                    open_ids.append(block["id"])
            continue
        yield from _results(message, i, open_ids)
        open_ids = []
    for call_id in open_ids:
        yield f"messages[{len(messages) - 1}]: the call {call_id!r} has no result"


def _results(message: Message, i: int, open_ids: list[str]) -> Iterator[str]:
    is_past_results = False
    for block in message["content"]:
        if block["type"] != "tool_result":
            is_past_results = True
        elif block["tool_use_id"] not in open_ids:
            yield (
                f"messages[{i}]: the result for {block['tool_use_id']!r} answers no open call of "
                "the message before"
            )
        else:
            open_ids.remove(block["tool_use_id"])
            if is_past_results:
                yield f"messages[{i}]: results stand before everything else"
    for call_id in open_ids:
        yield f"messages[{i}]: the call {call_id!r} has no result"


# ------------------------------------------------------------------ tools, thinking, bounds


def _tools(request: ModelRequest) -> Iterator[str]:
    names: set[str] = set()
    for i, tool in enumerate(request.tools):
        name = tool.get("name")
        if not isinstance(name, str) or not TOOL_NAME.fullmatch(name):
            yield f"tools[{i}]: {name!r} is no name of a tool: 1 to 64 of A-Z a-z 0-9 _ -"
            continue
        if name in names:
            yield f"tools[{i}]: there are two tools {name!r}"
        names.add(name)
    choice = request.tool_choice
    if choice is None:
        return
    kind: Any = choice.get("type")
    if kind not in ("auto", "any", "none", "tool"):
        yield f"tool_choice: the type {kind!r} is not known"
    elif not request.tools:
        yield "tool_choice: there is no tool to choose"
    elif kind == "tool" and choice.get("name") not in names:
        yield f"tool_choice: there is no tool {choice.get('name')!r}"
    if kind in ("any", "tool") and request.thinking != "off":
        yield f"tool_choice: {kind!r} cannot be combined with thinking"


def _reasoning(request: ModelRequest) -> Iterator[str]:
    if request.thinking == "off":
        return
    for i, message in enumerate(request.messages):
        kinds = [block["type"] for block in message["content"]]
        if "tool_use" in kinds and kinds[0] not in _REASONING and _REASONING.intersection(kinds):
            yield f"messages[{i}]: an answer with thinking and calls begins with the thinking"


def _bounds(request: ModelRequest, context_window: int | None) -> Iterator[str]:
    markers = caching.count(request)
    if markers > caching.MARKERS_MAX:
        yield f"cache_control: {markers} markers, at most {caching.MARKERS_MAX} are allowed"
    if request.max_tokens < 1:
        yield f"max_tokens: {request.max_tokens}, it must be 1 or more"
    if context_window is None:
        return
    if request.max_tokens >= context_window:
        yield f"max_tokens: {request.max_tokens} leave nothing of a window of {context_window}"
    estimated = tokens.estimate_request(request)
    if estimated * CERTAIN_SHARE > context_window:
        yield f"messages: about {estimated} tokens do not fit a window of {context_window}"
