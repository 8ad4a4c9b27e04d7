"""What adapters have in common: what a model is, and how one HTTP call of it is bounded."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable

import httpx2

from treadle.worker.agent.core.conversation import ModelError, ModelFault

CONNECT_TIMEOUT_S = 10.0
IDLE_TIMEOUT_S = 300.0
"""A stream that says nothing, not even a ping, for so long is dead. A long prompt is read within
it, too."""
DRAIN_TIMEOUT_S = 0.5
"""The connection is kept for the next call if the stream ends this soon after the answer."""


class Adapter:
    """Name, provider and sizes of a model; its calls are the adapter's own."""

    def __init__(
        self, provider: str, name: str, *, context_window: int, max_output_tokens: int
    ) -> None:
        self._provider = provider
        self._name = name
        self._context_window = context_window
        self._max_output_tokens = max_output_tokens

    @property
    def provider(self) -> str:
        """The provider, as telemetry names it."""
        return self._provider

    @property
    def name(self) -> str:
        """The provider's name of the model."""
        return self._name

    @property
    def context_window(self) -> int:
        """Tokens that input and output may fill together."""
        return self._context_window

    @property
    def max_output_tokens(self) -> int:
        """Most tokens of one answer, used when the agent does not say."""
        return self._max_output_tokens


def timeouts(timeout_s: float, *, is_streamed: bool) -> httpx2.Timeout:
    """Return the timeouts of one call that may take so long as a whole."""
    idle_s = min(timeout_s, IDLE_TIMEOUT_S) if is_streamed else timeout_s
    return httpx2.Timeout(idle_s, connect=CONNECT_TIMEOUT_S)


@contextlib.asynccontextmanager
async def whole_within(
    timeout_s: float, who: str, failure: Callable[[ModelFault], ModelError]
) -> AsyncGenerator[None]:
    """Bound what is awaited inside; at the end of the time raise ``failure`` of the fault."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            yield
    except TimeoutError as exc:
        if not limit.expired():
            raise
        text = f"{who}: no whole answer within {timeout_s:g} s"
        raise failure(ModelFault(kind="timeout", message=text)) from exc


async def drain(pieces: AsyncIterator[bytes]) -> None:
    """Read what is left of a stream whose answer is whole, for as long as that is worth it."""
    try:
        async with asyncio.timeout(DRAIN_TIMEOUT_S):
            async for _ in pieces:
                pass
    except (TimeoutError, httpx2.HTTPError):
        pass  # The answer is whole; the connection is closed instead of kept.
