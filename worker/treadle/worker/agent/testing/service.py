"""The endpoints: what is answered to a request, and what is noted about it.

    received -> recorded -> on_request -> rules -> next turn -> before_response -> sent

Refused requests use no turn. While an answer is on its way the socket is watched, so that a
client which goes away is noticed at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import assert_never

from treadle.worker.agent.testing import delivery
from treadle.worker.agent.testing.delivery import Delivery, deliver
from treadle.worker.agent.testing.http import BodyTooLarge, HttpRequest, Malformed, Peer
from treadle.worker.agent.testing.journal import Journal, RecordedRequest
from treadle.worker.agent.testing.parsing import parse
from treadle.worker.agent.testing.refusal import Refused, error_body
from treadle.worker.agent.testing.render import Renderer
from treadle.worker.agent.testing.rules import Draft, Limits, check
from treadle.worker.agent.testing.script import Answer, Failure, HangUp, Raw, Script, Turn
from treadle.worker.agent.testing.seal import Seal
from treadle.worker.agent.testing.sse import stream
from treadle.worker.agent.testing.usage import PromptCache, count_tokens
from treadle.worker.agent.testing.wire import Json

MESSAGES = "/v1/messages"
COUNT_TOKENS = "/v1/messages/count_tokens"
API_VERSION = r"\d{4}-\d{2}-\d{2}"
"""Every client has its own date; which ones exist is not this server's business."""

OnRequest = Callable[[RecordedRequest], object]
BeforeResponse = Callable[[RecordedRequest, Turn], object]


@dataclass(frozen=True)
class Hooks:
    """Called in threads, so they may wait; the client's socket is watched meanwhile."""

    on_request: OnRequest | None = None
    before_response: BeforeResponse | None = None


class Service:
    """Answers the requests of all connections. Its state belongs to the server's loop."""

    def __init__(
        self,
        script: Script,
        *,
        limits: Limits,
        seal: Seal,
        cache: PromptCache,
        hooks: Hooks,
        api_key: str | None,
        latency_s: float,
    ) -> None:
        self._script = script
        self._limits = limits
        self._seal = seal
        self._cache = cache
        self._hooks = hooks
        self._api_key = api_key
        self._latency_s = latency_s
        self._renderer = Renderer(seal)
        self._paused: list[list[Json]] = []
        self._served = 0
        self.journals = {MESSAGES: Journal(), COUNT_TOKENS: Journal()}
        self.failures: list[Exception] = []
        """What hooks and the script's function raised."""

    async def serve(self, peer: Peer) -> None:
        """Answer one request after the other until the client goes."""
        while not peer.is_closed:
            try:
                incoming = await peer.read_request()
            except (Malformed, BodyTooLarge) as exc:
                status = 413 if isinstance(exc, BodyTooLarge) else 400
                refused = Refused(str(exc) or "Request exceeds the maximum size", status)
                request_id = self._next_id()
                await deliver(peer, _refusal(refused, request_id), request_id)
                return
            if incoming is None:
                return
            await self._exchange(peer, incoming)
            if incoming.headers.get("connection", "").lower() == "close":
                return

    async def _exchange(self, peer: Peer, incoming: HttpRequest) -> None:
        request_id = self._next_id()
        journal = self.journals.get(incoming.path)
        if journal is None or incoming.method != "POST":
            status = 404 if journal is None else 405
            body = error_body("not_found_error", f"no {incoming.path}", request_id)
            if status == 405:
                body = error_body("invalid_request_error", "Method Not Allowed", request_id)
            await deliver(peer, delivery.of_json(status, body), request_id)
            return
        body, unreadable = _read(incoming.body)
        request = journal.add(incoming.path, incoming.headers, body, incoming.body)
        answer = asyncio.create_task(self._answer(peer, request, unreadable, request_id))
        gone = asyncio.create_task(peer.wait_client_closed())
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                journal.note_client_closed(request)
            elif isinstance(answer.exception(), ConnectionError):
                journal.note_client_closed(request)
                await peer.close()
            elif answer.result():
                journal.note_answered(request)
        finally:
            answer.cancel()
            gone.cancel()
            await asyncio.gather(answer, gone, return_exceptions=True)

    async def _answer(
        self, peer: Peer, request: RecordedRequest, unreadable: Refused | None, request_id: str
    ) -> bool:
        """Send an answer; return whether it was sent whole."""
        try:
            decided = await self._decide(request, unreadable, request_id)
        except Refused as refused:
            request.error = refused.message
            decided = _refusal(refused, request_id)
        except Exception as exc:  # noqa: BLE001 - a test's own code, told at the fake's exit
            self.failures.append(exc)
            decided = delivery.of_failure(_final(f"the test failed: {exc!r}"), request_id)
        if decided is None:
            await peer.close()
            return False
        request.status = decided.status
        return await deliver(peer, decided, request_id)

    async def _decide(
        self, request: RecordedRequest, unreadable: Refused | None, request_id: str
    ) -> Delivery | None:
        if self._hooks.on_request is not None:
            await asyncio.to_thread(self._hooks.on_request, request)
        self._check_headers(request.headers)
        if unreadable is not None:
            raise unreadable
        is_count = request.path == COUNT_TOKENS
        check(Draft(request.body, self._limits, self._seal, tuple(self._paused), is_count))
        tokens = count_tokens(request.body)
        if is_count:
            return delivery.of_json(200, {"input_tokens": tokens})
        if tokens > self._limits.context_window:
            raise Refused(
                f"prompt is too long: {tokens} tokens > {self._limits.context_window} maximum"
            )
        turn = self._script.next(request)
        if turn is None:
            return delivery.of_failure(self._exhausted(request), request_id)
        if self._latency_s:
            await asyncio.sleep(self._latency_s)
        if self._hooks.before_response is not None:
            await asyncio.to_thread(self._hooks.before_response, request, turn)
        return self._delivery(turn, request, request_id)

    def _delivery(self, turn: Turn, request: RecordedRequest, request_id: str) -> Delivery | None:
        match turn:
            case HangUp():
                return None
            case Failure():
                request.error = turn.message
                return delivery.of_failure(turn, request_id)
            case Raw():
                return delivery.of_raw(turn)
            case Answer():
                content = self._renderer.content(turn)
                used = self._cache.account(request.body)
                message = self._renderer.message(turn, content, request.body["model"], used)
                if turn.stop_reason == "pause_turn":
                    self._paused.append(message["content"])
                if request.is_stream:
                    made = delivery.of_stream(stream(message, content), turn.fault, request_id)
                else:
                    made = delivery.of_message(message, turn.fault, request_id)
                return replace(made, headers={**made.headers, **turn.headers})
            case _:
                assert_never(turn)

    def _check_headers(self, headers: dict[str, str]) -> None:
        bearer = headers.get("authorization", "").removeprefix("Bearer ")
        key = headers.get("x-api-key") or bearer
        if not key:
            raise Refused("x-api-key header is required", 401)
        if self._api_key is not None and key != self._api_key:
            raise Refused("invalid x-api-key", 401)
        version = headers.get("anthropic-version")
        if version is None:
            raise Refused("anthropic-version: header is required")
        if not re.fullmatch(API_VERSION, version):
            raise Refused(f'anthropic-version: "{version}" is not a valid version')

    def _exhausted(self, request: RecordedRequest) -> Failure:
        message = (
            f"script_exhausted: no turn is left for request {request.index + 1}. Give the fake "
            "more turns, or find out why the client asks again."
        )
        request.error = message
        return _final(message)

    def _next_id(self) -> str:
        self._served += 1
        return f"req_fake_{self._served:04}"


def _final(message: str) -> Failure:
    """Return an error that no client repeats and no rule of the API answers with."""
    return Failure(404, "not_found_error", message)


def _read(raw: bytes) -> tuple[Json, Refused | None]:
    """Return the body, or an empty one and why it could not be read."""
    try:
        return parse(raw), None
    except Refused as refused:
        return {}, refused


def _refusal(refused: Refused, request_id: str) -> Delivery:
    return delivery.of_failure(Failure(refused.status, refused.kind, refused.message), request_id)
