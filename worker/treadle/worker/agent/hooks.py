"""Places where the embedder sees and shapes a run. Each may be a plain or an async function.

    transform_context        before each model call: the request, to be returned or replaced
    convert_to_llm           before each model call: the messages the model shall see
    before_tool_call         per call, before it runs: let it pass, change its input, or block it
    after_tool_call          per call, after it ran: keep or replace its result
    prepare_next_turn        after each turn: another model or thinking level for the next
    should_stop_after_turn   after each turn: true ends the run
    get_steering_messages    at every boundary: texts that are heard before the next model call
    get_followup_messages    when the run would end: texts that reopen it
    get_api_key              per model call: a key for the provider
    on_stop                  once, with the result

A hook that raises fails the turn: the step's retry policy decides, and nothing is lost.
"""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.conversation import Message, ModelRequest, ThinkingLevel
from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.core.state import State

T = TypeVar("T")


class Block(msgspec.Struct, frozen=True):
    """Returned by ``before_tool_call``: the call does not run, and the model reads why."""

    reason: str


class NextTurn(msgspec.Struct, frozen=True, kw_only=True):
    """Returned by ``prepare_next_turn``: what the following turns use instead."""

    model: str = ""
    thinking: ThinkingLevel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """The hooks of an agent; what is ``None`` has no effect."""

    transform_context: Callable[[ModelRequest], ModelRequest | Awaitable[ModelRequest]] | None = (
        None
    )
    convert_to_llm: Callable[[list[Message]], list[Message] | Awaitable[list[Message]]] | None = (
        None
    )
    before_tool_call: Callable[[ToolCall], Any] | None = None
    """Returns ``None``, a dict (the input to run with) or ``Block``."""
    after_tool_call: Callable[[ToolCall, ToolResult], Any] | None = None
    """Returns ``None`` or another ``ToolResult`` with the same id."""
    prepare_next_turn: Callable[[State], Any] | None = None
    """Returns ``None`` or ``NextTurn``."""
    should_stop_after_turn: Callable[[State], bool | Awaitable[bool]] | None = None
    get_steering_messages: Callable[[], list[str] | Awaitable[list[str]]] | None = None
    get_followup_messages: Callable[[], list[str] | Awaitable[list[str]]] | None = None
    get_api_key: Callable[[str], str | Awaitable[str | None] | None] | None = None
    on_stop: Callable[[Stopped], Any] | None = None


async def call(hook: Callable[..., T | Awaitable[T]], *args: Any) -> T:
    """Call a hook, plain or async."""
    returned = hook(*args)
    if inspect.isawaitable(returned):
        return await returned
    return returned
