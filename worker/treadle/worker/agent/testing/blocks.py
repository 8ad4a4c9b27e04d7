"""What a scripted answer is made of, before the server gives it ids and signatures."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from treadle.worker.agent.testing.wire import Json


@dataclass(frozen=True)
class Text:
    """A ``text`` block."""

    text: str


@dataclass(frozen=True)
class ToolUse:
    """A ``tool_use`` block; without an id the server gives it one."""

    name: str
    input: Json
    id: str | None = None
    partial_json: str | None = None
    """Sent instead of ``input`` as it is, JSON or not. Streams only."""


@dataclass(frozen=True)
class Thinking:
    """A ``thinking`` block, signed by the server unless ``signed`` is false."""

    thinking: str
    signed: bool = True


@dataclass(frozen=True)
class RedactedThinking:
    """A ``redacted_thinking`` block; ``secret`` is what its data hides."""

    secret: str


@dataclass(frozen=True)
class Verbatim:
    """Any other block, sent exactly as it is."""

    block: Json


Block = Text | ToolUse | Thinking | RedactedThinking | Verbatim


def text(text: str) -> Text:
    """Return a text block."""
    return Text(text)


def tool_use(name: str, input: dict[str, Any], id: str | None = None) -> ToolUse:
    """Return a call of a tool. Ids are made up by the server: pass one to make it collide."""
    return ToolUse(name, input, id)


def malformed_tool_use(name: str, partial_json: str, id: str | None = None) -> ToolUse:
    """Return a call whose streamed input is this text: cut off, or no JSON at all.

    An answer that is not streamed cannot carry it; there the input is ``{}``.
    """
    return ToolUse(name, {}, id, partial_json)


def thinking(thinking: str, signed: bool = True) -> Thinking:
    """Return reasoning. ``thinking("")`` is the shape of omitted reasoning: signature only.

    ``signed=False`` sends no signature, as compatible servers of others do.
    """
    return Thinking(thinking, signed)


def redacted_thinking(secret: str = "redacted") -> RedactedThinking:
    """Return reasoning that the client cannot read, only send back."""
    return RedactedThinking(secret)


def block(block: dict[str, Any]) -> Verbatim:
    """Return any block as it is, such as ``server_tool_use``."""
    return Verbatim(block)
