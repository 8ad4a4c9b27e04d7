"""Content in the shape that the conventions for generative AI give it, as JSON of a bounded size.

messages        [{"role": "user", "parts": [part, ...]}, ...]
part            text, reasoning, tool_call, tool_call_response; of any other block its type
definitions     [{"type": "function", "name", "description", "parameters"}, ...]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

import msgspec

BYTES_MAX = 16 * 1024
"""Of one attribute, as UTF-8. What is longer is cut: its long texts first, all alike."""

_DEPTH_MAX = 64
_CHARS = tuple(round(BYTES_MAX * 0.7**step) for step in range(16))

Part = dict[str, Any]
Wrap = Callable[[str], Any]

_FINISH = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "tool_use": "tool_call",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "refusal": "content_filter",
}


def messages(said: Iterable[tuple[str, list[Part]]], finish_reason: str = "") -> str:
    """Return messages as an attribute: role and parts of each; one without parts is left out."""
    ended = {"finish_reason": _FINISH.get(finish_reason, finish_reason)} if finish_reason else {}
    found: list[dict[str, Any]] = [
        {"role": role, "parts": parts, **ended} for role, parts in said if parts or ended
    ]
    role = found[-1]["role"] if found else "user"
    return capped(found, lambda text: [{"role": role, "parts": [text_part(text)], **ended}])


def instructions(text: str) -> str:
    """Return an agent's instructions as an attribute."""
    return capped([text_part(text)], lambda cut: [text_part(cut)])


def definitions(tools: Iterable[tuple[str, str, dict[str, Any]]]) -> str:
    """Return tools as an attribute: name, description and JSON schema of each."""
    listed = list(tools)
    found = [
        {"type": "function", "name": name, "description": description, "parameters": schema}
        for name, description, schema in listed
    ]
    names = ", ".join(name for name, _, _ in listed)
    first: dict[str, Any] = {"type": "function", "name": names[:1_000]}
    return capped(found, lambda text: [{**first, "description": text}])


def parts_of(blocks: object) -> list[Part]:
    """Return the parts that stand for content blocks of the Messages API."""
    if not isinstance(blocks, list):
        return []
    listed = cast("list[object]", blocks)
    return [_part(cast("dict[str, Any]", each)) for each in listed if isinstance(each, dict)]


def text_part(text: str) -> Part:
    """Return a text as a part."""
    return {"type": "text", "content": text}


def response_part(call_id: object, content: object) -> Part:
    """Return what came of a tool call as a part."""
    return {"type": "tool_call_response", "id": call_id, "response": result_of(content)}


def result_of(content: object) -> Any:
    """Return a tool's result: the JSON value that a text holds, else the text, else parts."""
    if isinstance(content, list):
        return parts_of(cast("object", content))
    if isinstance(content, str) and content[:1] in ("{", "["):
        try:
            return msgspec.json.decode(content)
        except (ValueError, RecursionError):
            return content
    return content


def _part(block: dict[str, Any]) -> Part:
    match block:
        case {"type": "text", "text": str(text)}:
            return text_part(text)
        case {"type": "thinking", "thinking": str(text)}:
            return {"type": "reasoning", "content": text}
        case {"type": "tool_use"}:
            return {
                "type": "tool_call",
                "id": block.get("id"),
                "name": block.get("name"),
                "arguments": block.get("input"),
            }
        case {"type": "tool_result"}:
            return response_part(block.get("tool_use_id"), block.get("content"))
        case _:
            # Images, documents, what a provider encrypts: long, or not for people.
            return {"type": str(block.get("type", "unknown"))}


# ------------------------------------------------------------------ bounds


def raw(value: bytes) -> str:
    """Return a JSON value as an attribute."""
    if len(value) <= BYTES_MAX:
        return value.decode()
    try:
        decoded = msgspec.json.decode(value)
    except (ValueError, RecursionError):
        decoded = value.decode(errors="replace")
    return capped(decoded)


def capped(value: Any, wrap: Wrap = lambda text: text) -> str:
    """Return a value as JSON of at most ``BYTES_MAX`` bytes.

    What is too long has its texts cut, each with a mark that says of how much. If its texts are
    not what makes it long, ``wrap`` gets the beginning of its JSON as a text.
    """
    encoded = _encode(value)
    if len(encoded) <= BYTES_MAX:
        return encoded.decode()
    for chars in _CHARS:
        if chars < 100:
            break
        shorter = _encode(shortened(value, chars))
        if len(shorter) <= BYTES_MAX:
            return shorter.decode()
    text = encoded.decode()
    for chars in _CHARS:
        wrapped = _encode(wrap(_cut(text, chars)))
        if len(wrapped) <= BYTES_MAX:
            return wrapped.decode()
    return '"[cut]"'


def shortened(value: Any, chars: int = BYTES_MAX, depth: int = 0) -> Any:
    """Return the value with its texts cut to so many characters."""
    if isinstance(value, str):
        return _cut(value, chars)
    if not isinstance(value, list | dict):
        return value
    if depth == _DEPTH_MAX:
        return "[cut: nested deeper]"
    if isinstance(value, list):
        return [shortened(each, chars, depth + 1) for each in cast("list[object]", value)]
    members = cast("dict[str, Any]", value)
    return {name: shortened(each, chars, depth + 1) for name, each in members.items()}


def _cut(text: str, chars: int) -> str:
    if len(text) <= chars:
        return text
    return f"{text[:chars]}… [cut: {chars} of {len(text)} characters]"


def _encode(value: Any) -> bytes:
    try:
        return msgspec.json.encode(value)
    except RecursionError:
        return msgspec.json.encode(shortened(value))
