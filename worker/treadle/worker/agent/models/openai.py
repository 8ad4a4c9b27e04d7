"""Models behind chat completions as OpenAI's API has them: local servers, and other makers."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import msgspec

from treadle.worker.agent.core.conversation import (
    ModelError,
    ModelFault,
    ModelRequest,
    ModelResponse,
    RateLimits,
)
from treadle.worker.agent.models import faults
from treadle.worker.agent.models.adapter import Adapter, drain, timeouts, whole_within
from treadle.worker.agent.models.completion import Completion
from treadle.worker.agent.models.openai_wire import Inconvertible, body_of, error_of
from treadle.worker.agent.models.per_loop import PerLoop
from treadle.worker.agent.models.port import OnDelta
from treadle.worker.agent.models.rate_headers import rate_limits
from treadle.worker.agent.models.sse import SseDecoder
from treadle.worker.agent.models.text import excerpt, parse_object


class OpenAICompatibleModel(Adapter):
    """A model of a server that speaks chat completions."""

    def __init__(
        self,
        name: str,
        base_url: str,
        api_key: str = "",
        *,
        context_window: int = 32_768,
        max_output_tokens: int = 4_096,
        max_tokens_field: str = "max_tokens",
        provider: str = "openai",
        http_client: httpx2.AsyncClient | None = None,
    ) -> None:
        """``base_url`` ends where ``/chat/completions`` is added, mostly in ``/v1``.

        ``max_tokens_field`` is ``max_completion_tokens`` for OpenAI's own reasoning models. An
        ``http_client`` of your own is not closed by ``close()``.
        """
        super().__init__(
            provider, name, context_window=context_window, max_output_tokens=max_output_tokens
        )
        self._url = f"{base_url.rstrip('/')}/chat/completions"
        self._api_key = api_key
        self._max_tokens_field = max_tokens_field
        self._owns_http_client = http_client is None
        self._clients = PerLoop(lambda: http_client or httpx2.AsyncClient())

    async def respond(
        self,
        request: ModelRequest,
        *,
        on_delta: OnDelta | None = None,
        timeout_s: float = 600.0,
        api_key: str = "",
    ) -> ModelResponse:
        """Make exactly one HTTP request and return its answer; see ``Model.respond``."""
        call = _Call(self._provider, request, on_delta)
        async with whole_within(timeout_s, self._provider, call.failure):
            http_request = self._request(request, on_delta is not None, timeout_s, api_key)
            return await call.answer(self._clients.get(), http_request)

    async def count_tokens(self, request: ModelRequest) -> int | None:
        """Return ``None``: the protocol has no such question."""
        return None

    async def close(self) -> None:
        """Close the connections of the running loop."""
        client = self._clients.take()
        if client is not None and self._owns_http_client:
            await client.aclose()

    def _request(
        self, request: ModelRequest, is_streamed: bool, timeout_s: float, api_key: str
    ) -> httpx2.Request:
        headers = {"content-type": "application/json"}
        if key := api_key or self._api_key:
            headers["authorization"] = f"Bearer {key}"
        try:
            body = body_of(request, self._name, max_tokens_field=self._max_tokens_field)
            if is_streamed:
                body |= {"stream": True, "stream_options": {"include_usage": True}}
            return self._clients.get().build_request(
                "POST",
                self._url,
                content=json.dumps(body, ensure_ascii=False, allow_nan=False).encode(),
                headers=headers,
                timeout=timeouts(timeout_s, is_streamed=is_streamed),
            )
        except UnicodeEncodeError as exc:
            raise ModelError(faults.of_exception(self._provider, exc)) from exc
        except (Inconvertible, TypeError, ValueError, KeyError) as exc:
            fault = ModelFault(kind="invalid_request", message=f"{self._provider}: {exc}")
            raise ModelError(fault) from exc
        except httpx2.InvalidURL as exc:
            raise ModelError(faults.of_exception(self._provider, exc)) from exc


class _Call:
    """One call: what has come so far, and whether any of it was given out."""

    def __init__(self, who: str, request: ModelRequest, on_delta: OnDelta | None) -> None:
        self._who = who
        self._on_delta = on_delta
        self._completion = Completion(request)
        self._is_committed = False
        self._request_id = ""
        self._limits: RateLimits | None = None

    async def answer(self, client: httpx2.AsyncClient, request: httpx2.Request) -> ModelResponse:
        async with contextlib.aclosing(self._chunks(client, request)) as chunks:
            async for chunk in chunks:
                try:
                    deltas = self._completion.take(chunk)
                except ValueError as exc:
                    raise self._failure_of(exc) from exc
                for delta in deltas if self._on_delta is not None else ():
                    self._is_committed = True
                    assert self._on_delta is not None
                    self._on_delta(delta)
        if self._on_delta is not None and not self._completion.is_whole:
            text = f"{self._who}: the stream ended before the answer did"
            raise self.failure(ModelFault(kind="network", message=text))
        try:
            response = self._completion.response(self._request_id)
            return msgspec.structs.replace(response, limits=self._limits)
        except ValueError as exc:
            raise self._failure_of(exc) from exc

    def failure(self, fault: ModelFault) -> ModelError:
        """Return the error to raise, with the usage and the deltas so far."""
        return faults.failure(fault, self._completion.usage(), self._is_committed)

    def _failure_of(self, exc: Exception) -> ModelError:
        return self.failure(faults.of_exception(self._who, exc))

    async def _chunks(
        self, client: httpx2.AsyncClient, request: httpx2.Request
    ) -> AsyncGenerator[dict[str, Any]]:
        """Give out the chunks of the stream, or the whole answer as the only one."""
        try:
            answer = await client.send(request, stream=True)
            async with contextlib.aclosing(answer):
                self._request_id = answer.headers.get("x-request-id", "")
                self._limits = rate_limits(answer.headers, time.time())
                if not answer.is_success:
                    raise ModelError(_refused(self._who, answer, await answer.aread()))
                if self._on_delta is None:
                    yield self._checked(await answer.aread(), answer)
                    return
                decoder = SseDecoder()
                pieces = answer.aiter_bytes()
                async for piece in pieces:
                    for _, data in decoder.feed(piece):
                        if data.strip() == "[DONE]":
                            await drain(pieces)
                            return
                        yield self._checked(data, answer)
        except Exception as exc:  # Whatever the HTTP client raises becomes a fault.
            raise self._failure_of(exc) from exc

    def _checked(self, raw: str | bytes, answer: httpx2.Response) -> dict[str, Any]:
        chunk = parse_object(raw, "the answer")
        if "choices" in chunk and not chunk.get("error"):
            return chunk
        error = error_of(chunk)
        if error is None:
            return chunk
        raise ModelError(
            faults.of_answer(
                self._who,
                answer.status_code,
                headers=answer.headers,
                now_s=time.time(),
                **error,
            )
        )


def _refused(who: str, answer: httpx2.Response, raw: bytes) -> ModelFault:
    try:
        error = error_of(parse_object(raw, "the answer"))
    except ValueError:
        error = None
    said = error or {"text": excerpt(raw) if raw else "", "error_type": "", "code": ""}
    return faults.of_answer(
        who, answer.status_code, headers=answer.headers, now_s=time.time(), **said
    )
