"""The port to a model: one call, answered whole or failed, its deltas given out on the way."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from treadle.worker.agent.core.conversation import ModelRequest, ModelResponse


class TextDelta(msgspec.Struct, frozen=True, tag="text"):
    """More of the text of content block ``index``."""

    index: int
    text: str


class ThinkingDelta(msgspec.Struct, frozen=True, tag="thinking"):
    """More of the reasoning of content block ``index``."""

    index: int
    text: str


class ToolDelta(msgspec.Struct, frozen=True, tag="tool"):
    """A tool call begins (``id`` and ``name`` are set), or more of its input as JSON text."""

    index: int
    id: str = ""
    name: str = ""
    partial_json: str = ""


Delta = TextDelta | ThinkingDelta | ToolDelta
OnDelta = Callable[[Delta], None]


class Model(Protocol):
    """A model of a provider."""

    @property
    def provider(self) -> str:
        """The provider, as telemetry names it: ``anthropic``, ``openai``."""
        ...

    @property
    def name(self) -> str:
        """The provider's name of the model."""
        ...

    @property
    def context_window(self) -> int:
        """Tokens that input and output may fill together."""
        ...

    @property
    def max_output_tokens(self) -> int:
        """Most tokens of one answer, used when the agent does not say."""
        ...

    async def respond(
        self,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        timeout_s: float = 600.0,
        api_key: str = "",
    ) -> ModelResponse:
        """Make exactly one HTTP request and return its answer.

        Raises ``ModelError``. Cancelling the call closes its socket at once. With ``on_delta``
        the answer is streamed. ``api_key`` replaces the adapter's own for this call.
        """
        ...

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the provider's own count of the input, or ``None`` if it has none."""
        ...

    async def close(self) -> None:
        """Close the connections."""
        ...
