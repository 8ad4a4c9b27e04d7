"""What an iteration of an agent did, for its run's trace: model calls, tool calls, compactions.

Derived from the entries of the journal alone, so whoever settles the iteration tells the same of
what an earlier attempt has stored. Names, numbers and times; never what was said.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from treadle.sdk.spending import MICRO
from treadle.sdk.tracing import names
from treadle.sdk.tracing.span import SpanPart, Value
from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.core.entries import (
    Answered,
    Compacted,
    Entry,
    Nested,
    Settled,
    Wasted,
    innermost,
)
from treadle.worker.agent.core.spec import FINAL_OUTPUT

PARTS_MAX = 200
"""Of one verdict: an answer with more calls than that shows its first ones."""


class Written(NamedTuple):
    """An entry of the iteration: its place in the journal, and the attempt that stored it."""

    number: int
    entry: Entry
    attempt: int


def parts(
    written: Collection[Written],
    *,
    attempt: int,
    model: str,
    provider: str,
    agents: Collection[str],
) -> tuple[SpanPart, ...]:
    """Return what the entries of an iteration say was done; ``agents`` are names of sub-agents."""
    found: list[SpanPart] = []
    for number, entry, by in written:
        inner = innermost(entry)
        match inner:
            case Answered():
                part = _chat(inner, model, provider)
            case Compacted() if not inner.is_fallback and inner.stage == "compact":
                part = _compaction(inner, model, provider)
            case Wasted():
                part = _wasted(inner, model, provider)
            case Settled() if inner.result.attempts and inner.result.name != FINAL_OUTPUT:
                part = _call(inner, agents)
            case _:
                continue
        attributes = part.attributes | _of_whom(entry)
        found.append(
            SpanPart(
                number,
                part.name,
                part.start_us,
                part.end_us,
                attributes,
                part.error,
                0 if by == attempt else by,
            )
        )
    return tuple(found[:PARTS_MAX])


def _chat(entry: Answered, model: str, provider: str) -> SpanPart:
    at_us = entry.at_ms * 1_000
    attributes = _model(model, provider) | _usage(entry.usage + entry.wasted, entry.cost_micro_usd)
    attributes[names.RESPONSE_MODEL] = entry.model or model
    attributes[names.FINISH_REASONS] = entry.stop_reason
    if entry.tries > 1:
        attributes[names.TRIES] = entry.tries
    name = f"{names.CHAT} {entry.model or model}"
    return SpanPart(0, name, at_us - entry.duration_ms * 1_000, at_us, attributes)


def _compaction(entry: Compacted, model: str, provider: str) -> SpanPart:
    at_us = entry.at_ms * 1_000
    attributes = _model(model, provider) | _usage(entry.usage, entry.cost_micro_usd)
    attributes[names.COMPACTED_FROM] = entry.tokens_before
    attributes[names.COMPACTED_TO] = entry.tokens_after
    return SpanPart(0, f"{names.CHAT} {model} (compaction)", at_us, at_us, attributes)


def _wasted(entry: Wasted, model: str, provider: str) -> SpanPart:
    at_us = entry.at_ms * 1_000
    attributes = _model(model, provider) | _usage(entry.usage, entry.cost_micro_usd)
    return SpanPart(0, f"{names.CHAT} {model}", at_us, at_us, attributes, "interrupted")


def _call(entry: Settled, agents: Collection[str]) -> SpanPart:
    result, at_us = entry.result, entry.at_ms * 1_000
    is_agent = result.name in agents
    operation = names.INVOKE_AGENT if is_agent else names.EXECUTE_TOOL
    attributes: dict[str, Value] = {
        names.OPERATION: operation,
        names.AGENT if is_agent else names.TOOL: result.name,
        names.TOOL_CALL: result.id,
        names.TOOL_STATUS: result.status,
    }
    if not is_agent:
        attributes[names.TOOL_TYPE] = "function"
    if result.attempts > 1:
        attributes[names.TRIES] = result.attempts
    error = (result.error_type or result.status) if result.is_error else ""
    start_us = at_us - result.duration_ms * 1_000
    return SpanPart(0, f"{operation} {result.name}", start_us, at_us, attributes, error)


def _model(model: str, provider: str) -> dict[str, Value]:
    return {
        names.OPERATION: names.CHAT,
        names.PROVIDER: provider,
        names.REQUEST_MODEL: model,
    }


def _usage(usage: Usage, cost_micro_usd: int) -> dict[str, Value]:
    """Tokens as the conventions count them: cached ones are input too."""
    cached, written = usage.cache_read_tokens, usage.cache_write_tokens
    attributes: dict[str, Value] = {
        names.USAGE_INPUT: usage.input_tokens + cached + written,
        names.USAGE_OUTPUT: usage.output_tokens,
    }
    if cached:
        attributes[names.USAGE_CACHE_READ] = cached
    if written:
        attributes[names.USAGE_CACHE_WRITE] = written
    if cost_micro_usd:
        attributes[names.CALL_COST_USD] = cost_micro_usd / MICRO
    return attributes


def _of_whom(entry: Entry) -> dict[str, Value]:
    """Return which sub-agent an entry is of, by the calls that lead to it."""
    path: list[str] = []
    while isinstance(entry, Nested):
        path.append(entry.call_id)
        entry = entry.entry
    return {names.AGENT_PATH: "/".join(path)} if path else {}
