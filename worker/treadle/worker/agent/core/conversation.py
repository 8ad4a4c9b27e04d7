"""What is said between the runtime and a model, in the shape of the Messages API.

Content is kept as the blocks the model sent, in their order and with every field: thinking
signatures are checked by the API, and a block that was touched is refused.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Block = dict[str, Any]
"""One content block: ``{"type": "text", "text": ...}``, ``tool_use``, ``thinking``, ..."""

Message = dict[str, Any]
"""``{"role": "user" | "assistant", "content": [Block, ...]}``; content is always a list."""

ThinkingLevel = Literal["off", "low", "medium", "high"]


class Usage(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Tokens of one or more model calls. The three inputs are disjoint: their sum was read."""

    input_tokens: int = 0
    """Input that was neither read from a cache nor written to one."""
    cache_read_tokens: int = 0
    cache_write_tokens: int = 0
    output_tokens: int = 0
    is_estimated: bool = False
    """True when a broken stream left the provider's own count incomplete."""

    @property
    def context_tokens(self) -> int:
        """What the conversation fills of the window after this call."""
        return (
            self.input_tokens
            + self.cache_read_tokens
            + self.cache_write_tokens
            + self.output_tokens
        )

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            input_tokens=self.input_tokens + other.input_tokens,
            cache_read_tokens=self.cache_read_tokens + other.cache_read_tokens,
            cache_write_tokens=self.cache_write_tokens + other.cache_write_tokens,
            output_tokens=self.output_tokens + other.output_tokens,
            is_estimated=self.is_estimated or other.is_estimated,
        )


class RateLimits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What a provider said is left; -1 is not told. Times are milliseconds from then."""

    requests_left: int = -1
    requests_limit: int = 0
    requests_reset_ms: int = 0
    tokens_left: int = -1
    tokens_limit: int = 0
    tokens_reset_ms: int = 0


class ModelRequest(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One call of a model. Derived from the state by ``build_request``, never stored."""

    model: str
    """The provider's name of the model, without the ``provider:`` prefix."""
    max_tokens: int
    messages: list[Message]
    system: list[Block] = []
    """Text blocks; ``cache_control`` markers included."""
    tools: list[Block] = []
    """``{"name", "description", "input_schema"}`` each."""
    tool_choice: Block | None = None
    """``{"type": "auto" | "any" | "none"}`` or ``{"type": "tool", "name": ...}``."""
    thinking: ThinkingLevel = "off"
    temperature: float | None = None
    stop_sequences: list[str] = []
    metadata: dict[str, str] = {}


class ModelResponse(msgspec.Struct, frozen=True, kw_only=True):
    """A whole answer: an adapter never returns one that was cut off by the transport."""

    content: list[Block]
    stop_reason: str
    """The API's own: ``end_turn``, ``tool_use``, ``max_tokens``, ``stop_sequence``,
    ``pause_turn``, ``refusal``, ``model_context_window_exceeded``, or one not known yet."""
    usage: Usage
    model: str = ""
    """The model that answered, as the provider names it."""
    id: str = ""
    """The provider's request or message id, for its support."""
    stop_details: dict[str, Any] = {}
    """What the API says of the stop: the category and explanation of a refusal."""
    limits: RateLimits | None = None
    """What the provider said is left."""


ErrorKind = Literal[
    "rate_limited",
    "overloaded",
    "server",
    "network",
    "timeout",
    "malformed",
    "context_exceeded",
    "auth",
    "invalid_request",
    "other",
]
"""What went wrong with a model call.

Transient: ``rate_limited``, ``overloaded``, ``server``, ``network``, ``timeout``; and
``malformed`` once (the answer held tool input that is no JSON). All others are permanent.
"""

TRANSIENT: frozenset[ErrorKind] = frozenset(
    {"rate_limited", "overloaded", "server", "network", "timeout"}
)


class ModelFault(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A failed model call, as data."""

    kind: ErrorKind
    message: str
    status: int = 0
    """HTTP status; 0 without an answer. An error inside a stream keeps the stream's 200."""
    retry_after_s: float = 0.0
    usage: Usage = Usage()
    """What is known to have been used all the same."""
    is_committed: bool = False
    """Deltas of the answer have been given out: the call is not repeated silently."""
    limits: RateLimits | None = None
    """What the provider said is left, if it answered."""


class ModelError(Exception):
    """Raised by a model; ``fault`` says all of it."""

    def __init__(self, fault: ModelFault) -> None:
        super().__init__(f"{fault.kind}: {fault.message}")
        self.fault = fault
