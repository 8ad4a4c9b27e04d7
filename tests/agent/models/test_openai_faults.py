"""Failures of OpenAI-compatible servers are named like all others, whatever shape they have.

Method: raw answers, cut or wrong in one place each.
"""

from __future__ import annotations

import asyncio
import time

import pytest
from tests.agent.models.test_openai_wire import DONE, call, chunk
from tests.agent.models.wire import Deltas, Json, Reply, ask, fault, http, serve, stream

from treadle.worker.agent.core.conversation import ModelFault
from treadle.worker.agent.models.openai import OpenAICompatibleModel


def failed(reply: Reply, *, is_streamed: bool = True, timeout_s: float = 5.0) -> ModelFault:
    """Return the fault of a call that is answered so."""

    async def story() -> ModelFault:
        async with serve(reply) as wire:
            model = OpenAICompatibleModel("m", wire.url)
            on_delta = Deltas() if is_streamed else None
            what = await fault(model, ask(), on_delta=on_delta, timeout_s=timeout_s)
            await model.close()
            assert len(wire.requests) == 1
        return what

    return asyncio.run(story())


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (400, {"error": {"message": "no", "type": "invalid_request_error"}}, "invalid_request"),
        (400, {"error": {"message": "x", "code": "context_length_exceeded"}}, "context_exceeded"),
        (
            400,
            {"error": {"message": "the request exceeds the available context size", "code": 400}},
            "context_exceeded",
        ),
        (400, {"object": "error", "message": "maximum context length is 8"}, "context_exceeded"),
        (401, {"error": "bad key"}, "auth"),
        (404, {"detail": "no such model"}, "invalid_request"),
        (422, {"detail": [{"loc": "x"}]}, "invalid_request"),
        (429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}, "rate_limited"),
        (429, {"error": {"message": "pay", "type": "insufficient_quota"}}, "other"),
        (500, b"<html>oops</html>", "server"),
        (502, b"", "server"),
        (503, {"error": {"message": "Loading model", "code": 503}}, "server"),
    ],
)
def test_statuses_and_errors_of_all_shapes_are_told_apart(
    status: int, body: object, expected: str, is_streamed: bool
) -> None:
    what = failed(http(status, body, {"retry-after": "7"}), is_streamed=is_streamed)
    assert (what.kind, what.status, what.retry_after_s) == (expected, status, 7)


@pytest.mark.parametrize("given_out", [False, True])
def test_an_error_inside_a_stream_surfaces(given_out: bool) -> None:
    error = {"error": {"message": "boom", "type": "server_error"}}
    events = [chunk({"role": "assistant", "content": "hello" if given_out else ""}), error]
    what = failed(stream(*events))
    assert (what.kind, what.status, what.is_committed) == ("server", 200, given_out)


@pytest.mark.parametrize("kind", ["end", "peer closes"])
def test_a_stream_that_breaks_off_is_a_broken_connection(kind: str) -> None:
    events = [chunk({"content": "x" * 7}), chunk(call('{"to":', id="a", name="send"))]
    what = failed(stream(*events, length=9999 if kind == "peer closes" else None))
    assert (what.kind, what.is_committed) == ("network", True)
    assert what.usage.is_estimated
    assert what.usage.output_tokens == 5


def test_a_marker_of_the_end_without_a_reason_is_no_answer() -> None:
    assert failed(stream(chunk({"content": "x"}), DONE)).kind == "network"


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        {"choices": [{"message": {"content": 5}}]},
        {"choices": [{"message": {"tool_calls": [{"id": 5}]}}]},
        {"choices": [{"message": {"content": "x"}, "finish_reason": 5}]},
        {"choices": "x"},
    ],
)
def test_an_answer_that_breaks_the_protocol_is_malformed(body: object, is_streamed: bool) -> None:
    raw = body if isinstance(body, dict) else b"data: <html>\n\n"
    reply = stream(raw) if is_streamed else http(200, body)
    assert failed(reply, is_streamed=is_streamed).kind == "malformed"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_server_that_stalls_is_timed_out(is_streamed: bool) -> None:
    reply = stream(chunk({"content": "x"}), hold=True)
    if not is_streamed:
        reply = Reply(b"", hold=True)
    what = failed(reply, is_streamed=is_streamed, timeout_s=1.0)
    assert (what.kind, what.is_committed) == ("timeout", is_streamed)


@pytest.mark.parametrize("is_streamed", [False, True])
def test_cancelling_a_call_closes_its_socket_at_once(is_streamed: bool) -> None:
    async def story() -> None:
        reply = stream(chunk({"content": "x"}), hold=True) if is_streamed else Reply(b"", True)
        deltas = Deltas()
        async with serve(reply) as wire:
            model = OpenAICompatibleModel("m", wire.url)
            going = asyncio.create_task(
                model.respond(ask(), on_delta=deltas if is_streamed else None)
            )
            await asyncio.wait_for(wire.arrived.wait(), 5)
            while is_streamed and not deltas:
                await asyncio.sleep(0.005)
            began_s = time.monotonic()
            going.cancel()
            with pytest.raises(asyncio.CancelledError):
                await going
            await asyncio.wait_for(wire.gone.wait(), 2)
            assert wire.gone_at_s - began_s < 0.3
            await model.close()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("url", "expected"), [("http://127.0.0.1:1", "network"), ("nonsense", "other")]
)
def test_a_server_that_is_not_there_and_an_address_that_is_none_differ(
    url: str, expected: str
) -> None:
    async def story() -> ModelFault:
        model = OpenAICompatibleModel("m", url)
        what = await fault(model, ask())
        await model.close()
        return what

    assert asyncio.run(story()).kind == expected


def test_what_a_model_is_can_be_read_from_it() -> None:
    async def story() -> None:
        model = OpenAICompatibleModel("m", "http://x/v1", context_window=9, provider="vllm")
        assert (model.provider, model.name, model.context_window) == ("vllm", "m", 9)
        assert model.max_output_tokens == 4096
        assert await model.count_tokens(ask()) is None
        await model.close()

    asyncio.run(story())


def test_the_key_of_a_call_replaces_the_models_own() -> None:
    async def story() -> None:
        ok: Json = {"choices": [{"message": {"content": "ok"}, "finish_reason": "stop"}]}
        async with serve(http(200, ok)) as wire:
            model = OpenAICompatibleModel("m", wire.url, "own")
            await model.respond(ask(), api_key="other")
            await model.close()
            assert wire.requests[0].headers["authorization"] == "Bearer other"

    asyncio.run(story())


@pytest.mark.parametrize("body", [{}, {"choices": []}, {"choices": [{"message": {}}]}])
def test_an_answer_that_says_nothing_is_malformed(body: Json) -> None:
    assert failed(http(200, body), is_streamed=False).kind == "malformed"
