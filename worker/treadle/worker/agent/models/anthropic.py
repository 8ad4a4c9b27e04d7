"""Models behind Anthropic's Messages API, through the official SDK.

The SDK connects, authenticates and names errors. It neither retries (that is done durably,
outside) nor puts answers together: its own assembly completes a tool call that was cut off, and
takes a stream that just ends for an answer.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncGenerator
from typing import Any, cast

import anthropic
import httpx2
import msgspec
from anthropic import AsyncAnthropic

from treadle.worker.agent.core.conversation import (
    Block,
    ModelError,
    ModelFault,
    ModelRequest,
    ModelResponse,
    RateLimits,
)
from treadle.worker.agent.models import faults
from treadle.worker.agent.models.adapter import Adapter, drain, timeouts, whole_within
from treadle.worker.agent.models.anthropic_wire import ThinkingStyle, create_params, input_params
from treadle.worker.agent.models.assembly import Assembler, response_of
from treadle.worker.agent.models.per_loop import PerLoop
from treadle.worker.agent.models.port import OnDelta
from treadle.worker.agent.models.rate_headers import rate_limits
from treadle.worker.agent.models.sse import SseDecoder
from treadle.worker.agent.models.text import MalformedAnswer, parse_object

_WHO = "anthropic"


class AnthropicModel(Adapter):
    """A model of the Messages API. There is no default model: prices and terms differ."""

    def __init__(
        self,
        name: str,
        *,
        base_url: str | None = None,
        api_key: str | None = None,
        context_window: int = 200_000,
        max_output_tokens: int = 16_384,
        thinking: ThinkingStyle = "auto",
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        """``base_url`` and ``api_key`` default to ``ANTHROPIC_BASE_URL`` and ``_API_KEY``.

        An ``http_client`` of your own is not closed by ``close()``.
        """
        super().__init__(
            _WHO, name, context_window=context_window, max_output_tokens=max_output_tokens
        )
        self._style: ThinkingStyle = thinking
        self._owns_http_client = http_client is None

        def connect() -> AsyncAnthropic:
            return AsyncAnthropic(
                base_url=base_url, api_key=api_key, http_client=http_client, max_retries=0
            )

        self._clients = PerLoop(connect)

    async def respond(
        self,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        timeout_s: float = 600.0,
        api_key: str = "",
    ) -> ModelResponse:
        """Make exactly one HTTP request and return its answer; see ``Model.respond``."""
        params = create_params(request, self._name, self._style)
        call = _Call(on_delta)
        async with whole_within(timeout_s, _WHO, call.failure):
            client = self._client(api_key)
            if on_delta is None:
                return await _whole(client, params, timeout_s)
            return await call.stream(client, params, timeout_s)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return the API's count of the input; ``None`` if the server cannot count."""
        params = input_params(request, self._name, self._style)
        try:
            counted = await self._client("").messages.count_tokens(**params)
            return counted.input_tokens
        except anthropic.NotFoundError:
            return None
        except Exception as exc:  # Whatever the SDK raises becomes a fault.
            raise ModelError(fault_of(exc)) from exc

    async def close(self) -> None:
        """Close the connections of the running loop."""
        client = self._clients.take()
        if client is not None and self._owns_http_client:
            await client.close()

    def _client(self, api_key: str) -> AsyncAnthropic:
        try:
            client = self._clients.get()
        except Exception as exc:  # E.g. an address that is none.
            raise ModelError(fault_of(exc)) from exc
        if api_key:
            return client.with_options(api_key=api_key)
        if client.api_key is None and client.auth_token is None and client.credentials is None:
            fault = ModelFault(
                kind="auth",
                message=(
                    f"model {self._name!r} cannot be called: there is no API key. Set "
                    "ANTHROPIC_API_KEY, or pass api_key (any text for a server that wants none)"
                ),
            )
            raise ModelError(fault)
        return client


class _Call:
    """One streamed call: what has come so far, and whether any of it was given out."""

    def __init__(self, on_delta: OnDelta | None) -> None:
        self._on_delta = on_delta
        self._assembler = Assembler()
        self._is_committed = False
        self._request_id = ""
        self._limits: RateLimits | None = None

    async def stream(
        self, client: AsyncAnthropic, params: dict[str, Any], timeout_s: float
    ) -> ModelResponse:
        async with contextlib.aclosing(self._events(client, params, timeout_s)) as events:
            async for event in events:
                try:
                    delta = self._assembler.take(event)
                except MalformedAnswer as exc:
                    raise self.failure(fault_of(exc)) from exc
                if delta is not None and self._on_delta is not None:
                    self._is_committed = True
                    self._on_delta(delta)
        if not self._assembler.is_whole:
            raise self.failure(
                ModelFault(
                    kind="network", message=f"{_WHO}: the stream ended before the answer did"
                )
            )
        try:
            response = self._assembler.response(self._request_id)
            return msgspec.structs.replace(response, limits=self._limits)
        except MalformedAnswer as exc:
            raise self.failure(fault_of(exc)) from exc

    def failure(self, fault: ModelFault) -> ModelError:
        """Return the error to raise, with the usage and the deltas so far."""
        return faults.failure(fault, self._assembler.usage(), self._is_committed)

    async def _events(
        self, client: AsyncAnthropic, params: dict[str, Any], timeout_s: float
    ) -> AsyncGenerator[Block]:
        timeout = timeouts(timeout_s, is_streamed=True)
        try:
            async with client.messages.with_streaming_response.create(
                **params, stream=True, timeout=timeout
            ) as answer:
                http = answer.http_response
                self._request_id = http.headers.get("request-id", "")
                self._limits = rate_limits(http.headers, time.time())
                decoder = SseDecoder()
                chunks = http.aiter_bytes()
                async for chunk in chunks:
                    for name, data in decoder.feed(chunk):
                        event = _event(name, data, http)
                        yield event
                        if event.get("type") == "message_stop":
                            await drain(chunks)
                            return
        except ModelError as exc:
            raise self.failure(exc.fault) from exc
        except Exception as exc:  # Whatever the SDK raises becomes a fault.
            raise self.failure(fault_of(exc)) from exc


async def _whole(client: AsyncAnthropic, params: dict[str, Any], timeout_s: float) -> ModelResponse:
    timeout = timeouts(timeout_s, is_streamed=False)
    try:
        async with client.messages.with_streaming_response.create(
            **params, stream=False, timeout=timeout
        ) as answer:
            headers = answer.http_response.headers
            message = parse_object(await answer.read(), "the answer")
        response = response_of(message, None, headers.get("request-id", ""))
        return msgspec.structs.replace(response, limits=rate_limits(headers, time.time()))
    except Exception as exc:  # Whatever the SDK raises becomes a fault.
        raise ModelError(fault_of(exc)) from exc


def _event(name: str, data: str, http: httpx2.Response) -> Block:
    """Return the event. Raises ``ModelError`` if it is an error, whatever the status was."""
    try:
        event = parse_object(data, f"event {name!r} of the stream")
    except MalformedAnswer:
        if name != "error":
            raise
        event = {"type": "error", "error": {"type": "api_error", "message": data}}
    if event.get("type", name) != "error":
        return event
    raise ModelError(
        faults.of_answer(
            _WHO, http.status_code, headers=http.headers, now_s=time.time(), **_error_of(event)
        )
    )


def fault_of(exc: Exception) -> ModelFault:
    """Return the fault of an exception of the SDK, of its HTTP client, or of our reading."""
    match exc:
        case anthropic.APIStatusError():
            said = _error_of(exc.body)
            said["text"] = said["text"] or exc.message
            return faults.of_answer(
                _WHO,
                exc.status_code,
                headers=exc.response.headers,
                now_s=time.time(),
                **said,
            )
        case anthropic.APITimeoutError():
            return ModelFault(kind="timeout", message=f"{_WHO}: {exc.message}")
        case anthropic.APIConnectionError():
            if exc.__cause__ is not None:
                return faults.of_exception(_WHO, exc.__cause__)
            return ModelFault(kind="network", message=f"{_WHO}: {exc.message}")
        case anthropic.APIResponseValidationError():
            return ModelFault(kind="malformed", message=f"{_WHO}: {exc.message}")
        case anthropic.CredentialsError():
            return ModelFault(kind="auth", message=f"{_WHO}: {exc}")
        case _:
            return faults.of_exception(_WHO, exc)


def _error_of(body: object) -> dict[str, str]:
    """Return text, type and code of ``{"error": {"type", "message", "details"}}``."""
    error = cast("Block", body).get("error") if isinstance(body, dict) else None
    if not isinstance(error, dict):
        return {"text": error if isinstance(error, str) else "", "error_type": "", "code": ""}
    fields = cast("Block", error)
    details = fields.get("details")
    code = cast("Block", details).get("error_code") if isinstance(details, dict) else None
    return {
        "text": str(fields.get("message") or ""),
        "error_type": str(fields.get("type") or ""),
        "code": code if isinstance(code, str) else "",
    }
