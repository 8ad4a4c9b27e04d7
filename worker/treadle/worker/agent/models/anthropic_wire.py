"""Requests of the Messages API, and what its answers say of usage. Pure."""

from __future__ import annotations

import re
from typing import Any, Literal

from treadle.worker.agent.core.conversation import Block, ModelRequest, ThinkingLevel, Usage
from treadle.worker.agent.models.text import count

ThinkingStyle = Literal["auto", "adaptive", "always", "budget"]
"""How a model is told to think.

``adaptive``  it decides itself, guided by an effort; it can be told not to think
``always``    as ``adaptive``, but it refuses to be told not to think
``budget``    it thinks up to a number of tokens
``auto``      by the name: ``budget`` for Claude up to 4.5 and for models of other makers
"""

BUDGET_TOKENS: dict[ThinkingLevel, int] = {"low": 2048, "medium": 8192, "high": 24576}
BUDGET_TOKENS_MIN = 1024
"""The API's own least budget; it also has to be less than ``max_tokens``."""

_ALWAYS = re.compile(r"claude-(fable|mythos)-")
_BUDGET = re.compile(r"claude-(\d|instant|(opus|sonnet|haiku)-4(-[015])?(-\d{8})?$)")


def style_of(model: str) -> ThinkingStyle:
    """Return the style that ``auto`` stands for with this model."""
    if not model.startswith("claude-") or _BUDGET.match(model):
        return "budget"
    return "always" if _ALWAYS.match(model) else "adaptive"


def thinking_params(
    style: ThinkingStyle, level: ThinkingLevel, model: str, max_tokens: int
) -> dict[str, Any]:
    """Return the parameters that ask for this much thinking."""
    style = style_of(model) if style == "auto" else style
    if style != "budget":
        if level == "off":
            return {"thinking": {"type": "disabled"}} if style == "adaptive" else {}
        return {"thinking": {"type": "adaptive"}, "output_config": {"effort": level}}
    budget = min(BUDGET_TOKENS.get(level, 0), max_tokens - BUDGET_TOKENS_MIN)
    if budget < BUDGET_TOKENS_MIN:
        return {}  # Off, or no room for both thinking and an answer.
    return {"thinking": {"type": "enabled", "budget_tokens": budget}}


def input_params(request: ModelRequest, name: str, style: ThinkingStyle) -> dict[str, Any]:
    """Return what the model reads: the parameters that its input tokens depend on."""
    model = request.model or name
    params: dict[str, Any] = {"model": model, "messages": request.messages}
    if request.system:
        params["system"] = request.system
    if request.tools:
        params["tools"] = request.tools
        if request.tool_choice is not None:
            params["tool_choice"] = request.tool_choice
    return params | thinking_params(style, request.thinking, model, request.max_tokens)


def create_params(request: ModelRequest, name: str, style: ThinkingStyle) -> dict[str, Any]:
    """Return the parameters of ``messages.create``."""
    params = input_params(request, name, style) | {"max_tokens": request.max_tokens}
    if request.stop_sequences:
        params["stop_sequences"] = request.stop_sequences
    if request.metadata:
        params["metadata"] = request.metadata
    if request.temperature is not None and request.thinking == "off":
        # The SDK has no such parameter any more, and no model takes it together with thinking.
        params["extra_body"] = {"temperature": request.temperature}
    return params


def usage_of(raw: Block) -> Usage:
    """Return the usage; a count that is missing or ``null`` is 0."""
    return Usage(
        input_tokens=count(raw.get("input_tokens")),
        cache_read_tokens=count(raw.get("cache_read_input_tokens")),
        cache_write_tokens=count(raw.get("cache_creation_input_tokens")),
        output_tokens=count(raw.get("output_tokens")),
    )
