"""Fields of the body: those it must have, those it may have, and their types."""

from __future__ import annotations

from treadle.worker.agent.testing.refusal import Refused
from treadle.worker.agent.testing.rules.draft import Draft
from treadle.worker.agent.testing.wire import Json, as_int, as_list, as_object

COUNTED_FIELDS = frozenset(
    {
        "cache_control",
        "messages",
        "model",
        "output_config",
        "speed",
        "system",
        "thinking",
        "tool_choice",
        "tools",
        "user_profile_id",
    }
)
"""What may be asked to be counted."""

FIELDS = COUNTED_FIELDS | {
    "container",
    "context_management",
    "diagnostics",
    "inference_geo",
    "max_tokens",
    "mcp_servers",
    "metadata",
    "service_tier",
    "stop_sequences",
    "stream",
    "temperature",
    "top_k",
    "top_p",
}


def check_fields(draft: Draft) -> None:
    """Refuse missing, unknown and mistyped fields of the body."""
    body = draft.body
    required = ("messages", "model") if draft.is_count else ("max_tokens", "messages", "model")
    for name in required:
        if name not in body:
            raise Refused(f"{name}: Field required")
    for name in body:
        if name not in (COUNTED_FIELDS if draft.is_count else FIELDS):
            raise Refused(f"{name}: Extra inputs are not permitted")
    _check_types(body)
    if not draft.is_count:
        _check_numbers(body)


def _check_types(body: Json) -> None:
    if not isinstance(body["model"], str):
        raise Refused("model: Input should be a valid string")
    if not body["model"]:
        raise Refused("model: String should have at least 1 character")
    for name in ("messages", "tools", "stop_sequences"):
        if name in body and as_list(body[name]) is None:
            raise Refused(f"{name}: Input should be a valid list")
    for name in ("thinking", "tool_choice", "metadata"):
        if body.get(name) is not None and as_object(body[name]) is None:
            raise Refused(f"{name}: Input should be a valid dictionary")
    if not isinstance(body.get("stream", False), bool):
        raise Refused("stream: Input should be a valid boolean")
    system = body.get("system")
    if system is not None and not isinstance(system, str) and as_list(system) is None:
        raise Refused("system: Input should be a valid list")
    for i, block in enumerate(as_list(system) or []):
        if (as_object(block) or {}).get("type") != "text":
            raise Refused(f"system.{i}.type: Input should be 'text'")
    for i, sequence in enumerate(as_list(body.get("stop_sequences")) or []):
        if not isinstance(sequence, str) or not sequence.strip():
            raise Refused(f"stop_sequences.{i}: each stop sequence must contain non-whitespace")


def _check_numbers(body: Json) -> None:
    max_tokens = as_int(body["max_tokens"])
    if max_tokens is None:
        raise Refused("max_tokens: Input should be a valid integer")
    if max_tokens < 1:
        raise Refused("max_tokens: must be greater than or equal to 1")
    temperature = body.get("temperature")
    if temperature is None:
        return
    if isinstance(temperature, bool) or not isinstance(temperature, int | float):
        raise Refused("temperature: Input should be a valid number")
    if not 0 <= temperature <= 1:
        raise Refused("temperature: range: 0..1")
