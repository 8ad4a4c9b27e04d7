"""One question to the model through the ``anthropic`` SDK, and what its failures mean.

The engine is the one who tries again, with the step's retry policy, so the SDK must not:
``max_retries=0``. A failure is sorted into the two kinds a handler can raise: ``Retryable``
(the same question may succeed later) and ``NonRetryable`` (it never will).
"""

from __future__ import annotations

import os
from typing import Any, cast

import anthropic
from anthropic.types import MessageParam, ToolParam

from treadle.sdk.errors import NonRetryable, Retryable

DEFAULT_MODEL = "claude-sonnet-5-5"
TIMEOUT_S = 90
RETRY_AFTER_S_MAX = 300
"""A server that asks for a longer pause than this fails the step: someone should know."""
_TRANSIENT = {408, 409, 425, 429}

Reply = anthropic.types.Message
Message = dict[str, Any]
"""A message as the API has it. Replies are kept as they came, to be sent back unchanged."""


def client() -> anthropic.AsyncAnthropic:
    """Return a client; it reads ANTHROPIC_API_KEY and ANTHROPIC_BASE_URL itself."""
    if not os.environ.get("ANTHROPIC_API_KEY"):
        raise NonRetryable(
            "ANTHROPIC_API_KEY is not set, so there is no model to ask. Set it, or run "
            "scripted_model.py of this example and set the variables that it prints."
        )
    return anthropic.AsyncAnthropic(max_retries=0, timeout=TIMEOUT_S)


async def ask(
    model: anthropic.AsyncAnthropic,
    messages: list[Message],
    *,
    system: str,
    tools: list[ToolParam],
    max_tokens: int,
) -> Reply:
    """Return the model's next message; raise ``Retryable`` or ``NonRetryable``."""
    try:
        return await model.messages.create(
            model=os.environ.get("TREADLE_DEMO_MODEL", DEFAULT_MODEL),
            max_tokens=max_tokens,
            system=system,
            messages=cast("list[MessageParam]", messages),
            tools=tools,
            # One edit, one run of the tests, one checkpoint.
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
        )
    except anthropic.APIStatusError as exc:
        raise _sorted_by_status(exc) from exc
    except anthropic.APIConnectionError as exc:  # Time-outs too.
        raise Retryable(f"the model could not be reached: {exc}", after_s=1) from exc


def _sorted_by_status(exc: anthropic.APIStatusError) -> Retryable | NonRetryable:
    status = exc.status_code
    if status not in _TRANSIENT and status < 500:
        return NonRetryable(f"the model refused the request with status {status}: {exc.message}")
    after_s = _retry_after_s(exc.response.headers.get("retry-after"))
    if after_s > RETRY_AFTER_S_MAX:
        return NonRetryable(
            f"the model asks to wait {after_s:.0f} s, longer than {RETRY_AFTER_S_MAX} s: "
            f"{exc.message}. Resume the run later."
        )
    return Retryable(f"the model answered with status {status}: {exc.message}", after_s=after_s)


def _retry_after_s(text: str | None) -> float:
    """Return the seconds of a ``retry-after`` header; 1 if there is none that can be read."""
    try:
        return max(0.0, float(text)) if text is not None else 1.0
    except ValueError:
        return 1.0
