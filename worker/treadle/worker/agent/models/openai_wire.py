"""Between the Messages API and chat completions, in both directions. Pure.

system                          a message of role system
tool_result                     a message of role tool; images follow in one of role user
tool_use                        tool_calls of the assistant's message
thinking without a signature    reasoning_content, which such models want back
cache_control, metadata, thinking of another provider    left out
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any, cast

from treadle.worker.agent.core.conversation import Block, Message, ModelRequest, Usage
from treadle.worker.agent.models.assembly import WHOLE
from treadle.worker.agent.models.text import (
    MalformedAnswer,
    clean,
    count,
    estimated_tokens,
    excerpt,
    parse_object,
)

_STOP_REASONS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
_TOOL_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


class Inconvertible(TypeError):
    """A block that chat completions cannot express."""


def body_of(request: ModelRequest, name: str, *, max_tokens_field: str) -> dict[str, Any]:
    """Return the body of a chat completion. Raises ``Inconvertible``."""
    body: dict[str, Any] = {
        "model": request.model or name,
        max_tokens_field: request.max_tokens,
        "messages": _messages(request),
    }
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        body |= _choice(request.tool_choice or {"type": "auto"})
    if request.thinking != "off":
        body["reasoning_effort"] = request.thinking
    if request.temperature is not None:
        body["temperature"] = request.temperature
    if request.stop_sequences:
        body["stop"] = request.stop_sequences
    return body


def ids_of(messages: Iterable[Message]) -> set[str]:
    """Return the ids of all tool calls of the conversation."""
    return {
        block["id"]
        for message in messages
        for block in message["content"]
        if block.get("type") == "tool_use"
    }


def unique_id(proposed: str, used: set[str]) -> str:
    """Return the id, or one derived from it if it is taken or empty; ``used`` gets it too."""
    base = "".join(c if c.isascii() and (c.isalnum() or c in "_-") else "_" for c in proposed)
    unique, number = base or "call_0", 1
    while unique in used:
        unique, number = f"{base or 'call'}_{number}", number + 1
    used.add(unique)
    return unique


def tool_use(id: str, name: str, arguments: str, stop_reason: str) -> Block:
    """Return the block of a call. Raises ``MalformedAnswer``."""
    try:
        if not name:
            raise MalformedAnswer(f"a tool call has no name: {excerpt(arguments)}")
        what = f"the input of the tool call {name!r}"
        value = parse_object(arguments, what) if arguments.strip() else {}
    except MalformedAnswer:
        if stop_reason in WHOLE:
            raise
        value = {}  # Cut off together with the answer; no call of such an answer ever runs.
    return {"type": "tool_use", "id": id, "name": name, "input": clean(value)}


def stop_reason_of(finish_reason: str, has_calls: bool) -> str:
    """Return the stop reason; one not known is given on as it is."""
    reason = _STOP_REASONS.get(finish_reason, finish_reason)
    if reason == "end_turn" and has_calls:
        return "tool_use"
    return "end_turn" if reason == "tool_use" and not has_calls else reason


def usage_of(raw: object, chars: int, input_chars: int = 0) -> Usage:
    """Return the usage, its inputs disjoint; estimated if the server says nothing."""
    if not isinstance(raw, dict):
        return Usage(
            input_tokens=estimated_tokens(input_chars),
            output_tokens=estimated_tokens(chars),
            is_estimated=True,
        )
    counts = cast("dict[str, Any]", raw)
    details = counts.get("prompt_tokens_details")
    inner = cast("dict[str, Any]", details) if isinstance(details, dict) else {}
    cached = count(inner.get("cached_tokens") or counts.get("prompt_cache_hit_tokens"))
    prompt = count(counts.get("prompt_tokens"))
    return Usage(
        input_tokens=max(0, prompt - cached),
        cache_read_tokens=min(cached, prompt),
        output_tokens=count(counts.get("completion_tokens")),
    )


def error_of(body: object) -> dict[str, str] | None:
    """Return text, type and code of an error in any of the shapes servers have, else None."""
    if not isinstance(body, dict):
        return None
    fields = cast("dict[str, Any]", body)
    error = fields.get("error") or (fields if fields.get("object") == "error" else None)
    if not error:
        text = fields.get("detail") or fields.get("message")
        return {"text": str(text), "error_type": "", "code": ""} if text else None
    if not isinstance(error, dict):
        return {"text": str(error), "error_type": "", "code": ""}
    said = cast("dict[str, Any]", error)
    return {
        "text": str(said.get("message") or ""),
        "error_type": str(said.get("type") or ""),
        "code": str(said.get("code") or ""),
    }


def _messages(request: ModelRequest) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if system := "\n\n".join(block["text"] for block in request.system):
        messages.append({"role": "system", "content": system})
    for message in request.messages:
        if message["role"] == "assistant":
            messages.append(_assistant(message["content"]))
        else:
            messages.extend(_user(message["content"]))
    return messages


def _assistant(content: list[Block]) -> dict[str, Any]:
    texts: list[str] = []
    reasoning: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        match block["type"]:
            case "text":
                texts.append(block["text"])
            case "tool_use":
                calls.append(_call(block))
            case "thinking":
                if not block.get("signature"):
                    reasoning.append(block["thinking"])
            case "redacted_thinking":
                pass
            case kind:
                raise Inconvertible(_cannot(kind))
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if reasoning:
        message["reasoning_content"] = "".join(reasoning)
    if calls:
        message["tool_calls"] = calls
    elif not texts:
        message["content"] = ""  # Null is allowed beside calls only.
    return message


def _call(block: Block) -> dict[str, Any]:
    arguments = json.dumps(block["input"], ensure_ascii=False)
    return {
        "id": block["id"],
        "type": "function",
        "function": {"name": block["name"], "arguments": arguments},
    }


def _user(content: list[Block]) -> list[dict[str, Any]]:
    """Return the results, which have to come first, then all else in one message."""
    results: list[dict[str, Any]] = []
    parts: list[dict[str, Any]] = []
    for block in content:
        if block["type"] == "tool_result":
            text, images = _result(block)
            results.append({"role": "tool", "tool_call_id": block["tool_use_id"], "content": text})
            parts.extend(images)
        else:
            parts.append(_part(block))
    if not parts:
        return results
    if all(part["type"] == "text" for part in parts):
        return [*results, {"role": "user", "content": "\n\n".join(p["text"] for p in parts)}]
    return [*results, {"role": "user", "content": parts}]


def _result(block: Block) -> tuple[str, list[dict[str, Any]]]:
    content: str | list[Block] = block.get("content") or ""
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    parts = [_part(part) for part in blocks]
    images = [part for part in parts if part["type"] != "text"]
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if images:
        texts.append(f"({len(images)} image(s) of this result follow in the next message.)")
    text = "\n".join(texts)
    # The role has no flag for it, and a model that reads an error as a result goes on wrongly.
    return (f"[tool error] {text}" if block.get("is_error") else text), images


def _part(block: Block) -> dict[str, Any]:
    match block["type"]:
        case "text":
            return {"type": "text", "text": block["text"]}
        case "image":
            source = block["source"]
            url = source.get("url") or f"data:{source['media_type']};base64,{source['data']}"
            return {"type": "image_url", "image_url": {"url": url}}
        case kind:
            raise Inconvertible(_cannot(kind))


def _tool(tool: Block) -> dict[str, Any]:
    if "input_schema" not in tool:
        raise Inconvertible(_cannot(f"tool {tool.get('type')}"))
    function = {"name": tool["name"], "parameters": tool["input_schema"]}
    if description := tool.get("description"):
        function["description"] = description
    return {"type": "function", "function": function}


def _choice(choice: Block) -> dict[str, Any]:
    if choice["type"] == "tool":
        wanted: Any = {"type": "function", "function": {"name": choice["name"]}}
    else:
        wanted = _TOOL_CHOICES[choice["type"]]
    is_single = choice.get("disable_parallel_tool_use")
    return {"tool_choice": wanted} | ({"parallel_tool_calls": False} if is_single else {})


def _cannot(kind: str) -> str:
    return (
        f"a block of type {kind!r} cannot be sent to an OpenAI-compatible server: its protocol "
        "has nothing like it. Leave it out of the conversation, or use another model"
    )
