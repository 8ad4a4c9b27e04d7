"""A message of the Messages API from the events of its stream. Pure.

    message_start  { content_block_start  content_block_delta*  content_block_stop }*
    message_delta  message_stop

Blocks are kept exactly as they came: in their order, with every field, signatures included; also
blocks and deltas of kinds that are not known here. The input of a tool is collected as text and
parsed strictly once, at the end: a lenient parser makes a valid, wrong call of a cut one.
"""

from __future__ import annotations

from typing import Any

import msgspec

from treadle.worker.agent.core.conversation import Block, ModelResponse, Usage
from treadle.worker.agent.models.anthropic_wire import usage_of
from treadle.worker.agent.models.port import Delta, TextDelta, ThinkingDelta, ToolDelta
from treadle.worker.agent.models.text import (
    Halves,
    MalformedAnswer,
    clean,
    estimated_tokens,
    parse_object,
)

WHOLE = frozenset({"end_turn", "tool_use", "stop_sequence", "pause_turn"})
"""Stop reasons of a model that had said all it wanted; after others a tool call may be cut."""


class Assembler:
    """Takes the events one by one, gives deltas on the way and the answer at the end."""

    def __init__(self) -> None:
        self.is_whole = False
        """``message_stop`` has been seen."""
        self._message: Block = {}
        self._usage: Block = {}
        self._has_final_usage = False
        self._blocks: dict[int, Block] = {}
        self._partial_json: dict[int, list[str]] = {}
        self._halves: dict[int, Halves] = {}
        self._chars = 0

    def take(self, event: Block) -> Delta | None:
        """Take the event; return what it adds to the answer. Raises ``MalformedAnswer``."""
        try:
            match event.get("type"):
                case "message_start":
                    self._message = dict(event["message"])
                    self._merge_usage(self._message.get("usage"))
                case "content_block_start":
                    return self._start(int(event["index"]), dict(event["content_block"]))
                case "content_block_delta":
                    return self._add(int(event["index"]), event["delta"])
                case "message_delta":
                    self._message.update(event["delta"])
                    self._merge_usage(event.get("usage"))
                    self._has_final_usage = "output_tokens" in (event.get("usage") or {})
                case "message_stop":
                    self.is_whole = True
                case _:
                    pass  # A ping, the end of a block, or of a kind not known yet.
        except (KeyError, TypeError, AttributeError, ValueError) as exc:
            raise MalformedAnswer(
                f"event {event.get('type')!r} of the stream is not as the protocol says: {exc!r}"
            ) from exc
        return None

    def usage(self) -> Usage:
        """Return what is known to be used; the output is estimated if no count of it came."""
        usage = usage_of(self._usage)
        if self._has_final_usage or not self._message:
            return usage
        output = max(usage.output_tokens, estimated_tokens(self._chars))
        return msgspec.structs.replace(usage, output_tokens=output, is_estimated=True)

    def response(self, request_id: str = "") -> ModelResponse:
        """Return the answer. Raises ``MalformedAnswer`` if it cannot be used."""
        for index, parts in self._partial_json.items():
            raw = "".join(parts)
            self._blocks[index] = self._blocks[index] | {
                "input": _parsed(raw, self._blocks[index], self._message.get("stop_reason"))
            }
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return response_of(self._message | {"content": content}, self.usage(), request_id)

    def _start(self, index: int, block: Block) -> Delta | None:
        self._blocks[index] = block
        if block.get("type") == "tool_use":
            self._chars += len(block["name"])
            return ToolDelta(index=index, id=block["id"], name=block["name"])
        if text := block.get("text"):
            return self._shown(index, "text", text)
        return None

    def _add(self, index: int, delta: Block) -> Delta | None:
        block = self._blocks[index]
        match delta.get("type"):
            case "text_delta":
                block["text"] = block.get("text", "") + delta["text"]
                return self._shown(index, "text", delta["text"])
            case "thinking_delta":
                block["thinking"] = block.get("thinking", "") + delta["thinking"]
                return self._shown(index, "thinking", delta["thinking"])
            case "signature_delta":
                block["signature"] = delta["signature"]
            case "input_json_delta":
                partial = delta["partial_json"]
                self._partial_json.setdefault(index, []).append(partial)
                if block.get("type") == "tool_use":
                    return self._shown(index, "tool", partial)
                self._chars += len(partial)
            case "citations_delta":
                block["citations"] = [*(block.get("citations") or []), delta["citation"]]
            case _:
                _merge(block, delta)
        return None

    def _shown(self, index: int, kind: str, text: str) -> Delta | None:
        self._chars += len(text)
        text = self._halves.setdefault(index, Halves()).push(text)
        if not text:
            return None
        if kind == "tool":
            return ToolDelta(index=index, partial_json=text)
        make = TextDelta if kind == "text" else ThinkingDelta
        return make(index=index, text=text)

    def _merge_usage(self, raw: Block | None) -> None:
        # The counts are cumulative: the last one of each stands.
        self._usage.update({key: n for key, n in (raw or {}).items() if n is not None})


def response_of(message: Block, usage: Usage | None = None, request_id: str = "") -> ModelResponse:
    """Return the answer that the message of the API is. Raises ``MalformedAnswer``."""
    content, stop_reason = message.get("content"), message.get("stop_reason")
    if not isinstance(content, list) or not isinstance(stop_reason, str) or not stop_reason:
        raise MalformedAnswer(
            f"the answer has no content or no stop reason (stop_reason {stop_reason!r})"
        )
    blocks = _items(content)
    try:
        return ModelResponse(
            content=[_finished(block) for block in blocks],
            stop_reason=stop_reason,
            usage=usage or usage_of(message.get("usage") or {}),
            model=str(message.get("model") or ""),
            id=request_id or str(message.get("id") or ""),
            stop_details=dict(clean(message.get("stop_details") or {})),
        )
    except (KeyError, TypeError, AttributeError) as exc:
        raise MalformedAnswer(
            f"a block of the answer is not as the protocol says: {exc!r}"
        ) from exc


def _finished(block: Block) -> Block:
    block = clean(block)
    kind = block["type"]
    if kind == "tool_use" and not (
        isinstance(block["input"], dict) and isinstance(block["id"], str) and block["name"]
    ):
        raise MalformedAnswer(f"the tool call {block.get('name')!r} has no id, name or input")
    if kind == "thinking" and block.get("signature") == "":
        # The stream's placeholder: a model that does not sign sends nothing in its place.
        del block["signature"]
    return block


def _parsed(raw: str, block: Block, stop_reason: object) -> dict[str, Any]:
    if not raw.strip():
        return block.get("input") or {}
    try:
        return parse_object(raw, f"the input of the tool call {block.get('name')!r}")
    except MalformedAnswer:
        if stop_reason in WHOLE or not stop_reason:
            raise
        # Cut off together with the answer; no call of such an answer ever runs.
        return {}


def _items(value: Any) -> list[Any]:
    return value  # type: ignore[no-any-return]


def _merge(block: Block, delta: Block) -> None:
    """Add a delta of a kind not known here: texts and lists grow, anything else is replaced."""
    for key, value in delta.items():
        old = block.get(key)
        if key == "type":
            continue
        if isinstance(value, str) and isinstance(old, str):
            block[key] = old + value
        elif isinstance(value, list) and isinstance(old, list):
            block[key] = [*_items(old), *_items(value)]
        else:
            block[key] = value
