"""An answer of chat completions, whole or from the chunks of its stream. Pure."""

from __future__ import annotations

from typing import Any, cast

import msgspec

from treadle.worker.agent.core.conversation import Block, ModelRequest, ModelResponse, Usage
from treadle.worker.agent.models import openai_wire as wire
from treadle.worker.agent.models.port import Delta, TextDelta, ThinkingDelta, ToolDelta
from treadle.worker.agent.models.text import Halves, MalformedAnswer, clean


class _Call:
    """A tool call while its fragments arrive."""

    def __init__(self, index: int, key: object, original_id: str, id: str) -> None:
        self.index = index
        self.key = key
        self.original_id = original_id
        self.id = id
        self.name = ""
        self.arguments: list[str] = []
        self.halves = Halves()


class Completion:
    """Takes chunks of a stream, or one whole answer; gives the deltas and the answer."""

    def __init__(self, request: ModelRequest) -> None:
        self._used_ids = wire.ids_of(request.messages)
        self._request = request
        self._texts: dict[str, list[str]] = {}
        self._indexes: dict[str, int] = {}
        self._halves: dict[str, Halves] = {}
        self._calls: list[_Call] = []
        self._finish_reason = ""
        self._usage: Block | None = None
        self._model = ""
        self._id = ""
        self._has_begun = False

    @property
    def is_whole(self) -> bool:
        """The server has said why it stopped."""
        return bool(self._finish_reason)

    def take(self, chunk: dict[str, Any]) -> list[Delta]:
        """Take a chunk, or a whole answer. Raises ``MalformedAnswer``."""
        try:
            return self._take(chunk)
        except (KeyError, TypeError, AttributeError, IndexError) as exc:
            raise MalformedAnswer(
                f"the answer is not as the protocol says: {exc!r} in {str(chunk)[:200]!r}"
            ) from exc

    def usage(self) -> Usage:
        """Return what is known or estimated to be used."""
        if not self._has_begun:
            return Usage()
        calls = sum(len(part) for call in self._calls for part in (call.name, *call.arguments))
        texts = sum(len(part) for parts in self._texts.values() for part in parts)
        inputs = 0
        if self._usage is None:
            inputs = len(msgspec.json.encode(_readable(self._request)))
        return wire.usage_of(self._usage, texts + calls, inputs)

    def response(self, request_id: str = "") -> ModelResponse:
        """Return the answer. Raises ``MalformedAnswer`` if it cannot be used."""
        if not self._finish_reason:
            raise MalformedAnswer("the answer has no finish_reason")
        stop_reason = wire.stop_reason_of(self._finish_reason, bool(self._calls))
        if "refusal" in self._texts:
            stop_reason = "refusal"
        blocks: dict[int, Block] = {
            self._indexes[kind]: _text_block(kind, clean("".join(parts)))
            for kind, parts in self._texts.items()
        }
        seen: set[tuple[str, str, str]] = set()
        for call in self._calls:
            arguments = "".join(call.arguments)
            same = (call.original_id, call.name, arguments)
            if call.original_id and same in seen:
                continue  # The same call, sent twice.
            seen.add(same)
            blocks[call.index] = wire.tool_use(call.id, call.name, arguments, stop_reason)
        return ModelResponse(
            content=[blocks[index] for index in sorted(blocks)],
            stop_reason=stop_reason,
            usage=self.usage(),
            model=self._model,
            id=request_id or self._id,
        )

    def _take(self, chunk: dict[str, Any]) -> list[Delta]:
        self._has_begun = True
        self._model = _string(chunk.get("model")) or self._model
        self._id = _string(chunk.get("id")) or self._id
        self._usage = chunk.get("usage") or self._usage
        deltas: list[Delta] = []
        choices: list[Block] = chunk.get("choices") or []
        for choice in choices:
            if choice.get("index"):
                continue  # One answer was asked for.
            said: Block = choice.get("delta") or choice.get("message") or {}
            fragments: list[Block] = said.get("tool_calls") or []
            deltas += self._said("thinking", _reasoning(said))
            deltas += self._said("text", _text(said.get("content")))
            deltas += self._said("refusal", _string(said.get("refusal")))
            for fragment in fragments:
                deltas += self._fragment(fragment)
            self._finish_reason = _string(choice.get("finish_reason")) or self._finish_reason
        return deltas

    def _said(self, kind: str, text: str) -> list[Delta]:
        if not text:
            return []
        if kind not in self._texts:
            self._texts[kind], self._indexes[kind] = [], self._next_index()
            self._halves[kind] = Halves()
        self._texts[kind].append(text)
        shown = self._halves[kind].push(text)
        make = ThinkingDelta if kind == "thinking" else TextDelta
        return [make(index=self._indexes[kind], text=shown)] if shown else []

    def _fragment(self, fragment: dict[str, Any]) -> list[Delta]:
        function: Block = fragment.get("function") or {}
        id, name = _string(fragment.get("id")), _string(function.get("name"))
        call = self._call_of(fragment.get("index"), id, name)
        deltas: list[Delta] = []
        if call is None:
            unique = wire.unique_id(id, self._used_ids)
            call = _Call(self._next_index(), fragment.get("index"), id, unique)
            call.name = name
            self._calls.append(call)
            deltas.append(ToolDelta(index=call.index, id=call.id, name=name))
        elif name and not call.name:
            call.name = name
            deltas.append(ToolDelta(index=call.index, id=call.id, name=name))
        raw: Any = function.get("arguments") or ""
        # Some servers have parsed it already.
        arguments: str = raw if isinstance(raw, str) else msgspec.json.encode(raw).decode()
        call.arguments.append(arguments)
        if shown := call.halves.push(arguments):
            deltas.append(ToolDelta(index=call.index, partial_json=shown))
        return deltas

    def _call_of(self, key: object, id: str, name: str) -> _Call | None:
        """Return the call that the fragment goes on with; ``None``: it begins one.

        Some servers leave the index out, others give 0 to every call: then a new id begins one.
        """
        if not self._calls:
            return None
        if key is None:
            same = [call for call in self._calls if id and call.original_id == id]
            if same and not name:
                return same[-1]
            return None if id or name else self._calls[-1]
        same = [call for call in self._calls if call.key == key]
        if same and (not id or not name or same[-1].original_id in ("", id)):
            return same[-1]
        return None

    def _next_index(self) -> int:
        return len(self._indexes) + len(self._calls)


def _text(content: object) -> str:
    if isinstance(content, list):
        parts = cast("list[dict[str, Any]]", content)
        return "".join(_string(part.get("text")) for part in parts)
    return _string(content)


def _string(value: object) -> str:
    if value is None:
        return ""
    if not isinstance(value, str):
        raise TypeError(f"{value!r} is no text")
    return value


def _reasoning(said: dict[str, Any]) -> str:
    return _text(said.get("reasoning_content") or said.get("reasoning"))


def _text_block(kind: str, text: str) -> Block:
    # Unsigned, so without the field: an empty signature would be refused.
    if kind == "thinking":
        return {"type": "thinking", "thinking": text}
    return {"type": "text", "text": text}


def _readable(request: ModelRequest) -> list[Any]:
    return [request.system, request.messages, request.tools]
