"""Every way a call of the Messages API fails is named, with what was used and given out.

Method: raw answers, cut or wrong in one place each; one test asks the strict server.
"""

from __future__ import annotations

import asyncio
import datetime
import email.utils
import time

import anthropic
import httpx2
import pytest
from tests.agent.models.wire import (
    Deltas,
    Json,
    Reply,
    ask,
    begin,
    call_block,
    delta,
    fault,
    http,
    message_end,
    message_start,
    said,
    serve,
    sse,
    stream,
    text_block,
)

from treadle.worker.agent.core.conversation import (
    TRANSIENT,
    ModelError,
    ModelFault,
    ModelRequest,
    Usage,
)
from treadle.worker.agent.models.anthropic import AnthropicModel, fault_of
from treadle.worker.agent.models.port import ToolDelta
from treadle.worker.agent.testing import FakeAnthropic, hang_up, text, turn

HELLO = [message_start(), *text_block("hello ", "world, how are you")]


def failed(
    reply: Reply,
    *,
    is_streamed: bool = True,
    request: ModelRequest | None = None,
    timeout_s: float = 5.0,
) -> ModelFault:
    """Return the fault of a call that is answered so."""

    async def story() -> ModelFault:
        async with serve(reply) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            on_delta = Deltas() if is_streamed else None
            what = await fault(model, request or ask(), on_delta=on_delta, timeout_s=timeout_s)
            await model.close()
            assert len(wire.requests) == 1, "one call of respond is one request"
        return what

    return asyncio.run(story())


def error(kind: str, message: str = "no", **details: str) -> Json:
    """Return the body of an error."""
    inner: Json = {"type": kind, "message": message}
    return {"type": "error", "error": inner | ({"details": details} if details else {})}


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize(
    ("status", "kind", "expected"),
    [
        (400, "invalid_request_error", "invalid_request"),
        (401, "authentication_error", "auth"),
        (402, "billing_error", "other"),
        (403, "permission_error", "auth"),
        (404, "not_found_error", "invalid_request"),
        (408, "timeout_error", "timeout"),
        (409, "invalid_request_error", "server"),
        (413, "request_too_large", "context_exceeded"),
        (418, "teapot_error", "invalid_request"),
        (429, "rate_limit_error", "rate_limited"),
        (500, "api_error", "server"),
        (501, "api_error", "server"),
        (503, "unknown", "server"),
        (504, "timeout_error", "timeout"),
        (529, "overloaded_error", "overloaded"),
    ],
)
def test_statuses_and_error_types_are_told_apart(
    status: int, kind: str, expected: str, is_streamed: bool
) -> None:
    what = failed(http(status, error(kind, "because")), is_streamed=is_streamed)
    assert (what.kind, what.status, what.is_committed) == (expected, status, False)
    assert "because" in what.message
    assert what.usage == Usage()


def test_a_limit_of_spending_is_not_waited_for() -> None:
    body = error("rate_limit_error", error_code="enforced_spend_limit_reached")
    what = failed(http(429, body))
    assert what.kind == "other"


@pytest.mark.parametrize(
    "message",
    [
        "prompt is too long: 210000 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    ],
)
def test_a_prompt_that_is_too_long_is_told_from_other_bad_requests(message: str) -> None:
    assert failed(http(400, error("invalid_request_error", message))).kind == "context_exceeded"


def test_the_strict_servers_refusal_of_a_long_prompt_is_recognised() -> None:
    async def story() -> ModelFault:
        with FakeAnthropic(context_window=100, allow_exhausted=True) as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k")
            what = await fault(model, ask(messages=[said("user", "word " * 500)]))
            await model.close()
        return what

    assert asyncio.run(story()).kind == "context_exceeded"


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("overloaded_error", "overloaded"),
        ("api_error", "server"),
        ("rate_limit_error", "rate_limited"),
        ("invalid_request_error", "invalid_request"),
        ("error_of_tomorrow", "other"),
    ],
)
@pytest.mark.parametrize("given_out", [False, True])
def test_an_error_inside_a_stream_is_named_by_its_type_and_knows_what_was_given_out(
    kind: str, expected: str, given_out: bool
) -> None:
    what = failed(stream(*(HELLO if given_out else HELLO[:1]), error(kind)))
    assert (what.kind, what.status, what.is_committed) == (expected, 200, given_out)
    assert what.usage.input_tokens == 11
    assert what.usage.is_estimated


def test_an_error_inside_a_stream_that_is_no_json_still_surfaces() -> None:
    what = failed(stream(message_start(), b"event: error\ndata: upstream went away\n\n"))
    assert what.kind == "server"
    assert "upstream went away" in what.message


@pytest.mark.parametrize("cut", range(1, 4))
def test_a_stream_that_just_ends_is_a_broken_connection_not_an_answer(cut: int) -> None:
    what = failed(stream(*HELLO[: cut + 1]))
    assert what.kind == "network"
    assert what.is_committed == (cut > 1)
    assert what.usage.is_estimated
    assert (what.usage.input_tokens, what.usage.output_tokens) == (11, [1, 2, 7][cut - 1])


def test_a_tool_call_cut_by_the_end_of_the_stream_is_never_handed_on() -> None:
    what = failed(stream(message_start(), *call_block('{"to": "bob", "amount": 10')))
    assert what.kind == "network"


def test_the_output_is_not_estimated_if_its_count_came_before_the_cut() -> None:
    what = failed(stream(*HELLO, message_end()[0]))
    assert what.kind == "network"
    assert what.usage == Usage(input_tokens=11, output_tokens=9)


def test_a_half_of_an_event_at_the_end_is_not_taken_for_one() -> None:
    what = failed(stream(*HELLO, message_end()[0], sse(message_end()[1])[:-1]))
    assert what.kind == "network"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_peer_that_closes_in_the_middle_is_a_broken_connection(is_streamed: bool) -> None:
    reply = stream(*HELLO, length=10_000) if is_streamed else http(200, {"a": 1}, length=10_000)
    what = failed(reply, is_streamed=is_streamed)
    assert what.kind == "network"
    assert what.is_committed == is_streamed


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_peer_that_answers_nothing_is_a_broken_connection(is_streamed: bool) -> None:
    async def story() -> ModelFault:
        with FakeAnthropic([hang_up()]) as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k")
            what = await fault(model, ask(), on_delta=Deltas() if is_streamed else None)
            await model.close()
        return what

    assert asyncio.run(story()).kind == "network"


def test_a_server_that_is_not_there_is_a_broken_connection() -> None:
    async def story() -> ModelFault:
        async with serve() as wire:
            url = wire.url
        model = AnthropicModel("m", base_url=url, api_key="k")
        what = await fault(model, ask())
        await model.close()
        return what

    assert asyncio.run(story()).kind == "network"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_server_that_stalls_is_timed_out_with_what_was_used(is_streamed: bool) -> None:
    reply = stream(*HELLO, hold=True)
    if not is_streamed:
        reply = Reply(http(200, b"{", length=100).raw, hold=True)
    what = failed(reply, is_streamed=is_streamed, timeout_s=1.0)
    assert what.kind == "timeout"
    assert what.is_committed == is_streamed
    assert what.usage.input_tokens == (11 if is_streamed else 0)


def test_a_stream_kept_alive_by_pings_ends_at_the_time_limit_all_the_same() -> None:
    async def story() -> ModelFault:
        async def drip(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(stream(message_start()).raw)
            while not writer.is_closing() and not reader.at_eof():
                writer.write(sse({"type": "ping"}))
                try:
                    await asyncio.wait_for(reader.read(1 << 16), 0.02)
                except TimeoutError:
                    continue
            writer.close()
            done.set()

        done = asyncio.Event()
        server = await asyncio.start_server(drip, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = AnthropicModel("m", base_url=url, api_key="k")
        what = await fault(model, ask(), on_delta=Deltas(), timeout_s=1.0)
        await model.close()
        await asyncio.wait_for(done.wait(), 2)
        server.close()
        await server.wait_closed()
        return what

    assert asyncio.run(story()).kind == "timeout"


@pytest.mark.parametrize("is_streamed", [False, True])
def test_an_answer_that_is_no_json_is_malformed(is_streamed: bool) -> None:
    page = b"<html>Please log in</html>"
    reply = stream(b"data: " + page + b"\n\n") if is_streamed else http(200, page)
    assert failed(reply, is_streamed=is_streamed).kind == "malformed"


@pytest.mark.parametrize(
    "events",
    [
        [message_start(), delta(3, "text_delta", text="x")],
        [message_start(), begin(0, type="tool_use", name="no id")],
        [{"type": "message_start"}],
        [message_start(), *message_end(None)],
        [message_start(), b"data: \xff\xfe\n\n"],
        [message_start(), b"data: [1, 2]\n\n"],
    ],
)
def test_a_stream_that_breaks_the_protocol_is_malformed(events: list[object]) -> None:
    assert failed(stream(*events)).kind == "malformed"


@pytest.mark.parametrize(
    "body",
    [
        {"content": "text", "stop_reason": "end_turn"},
        {"content": [], "stop_reason": "refusal", "stop_details": "x"},
        {"content": [], "stop_reason": "end_turn", "usage": [1]},
        {"content": [], "stop_reason": None},
        {"content": ["x"], "stop_reason": "end_turn"},
        {"content": [{"type": "tool_use", "id": "a", "name": "b"}], "stop_reason": "tool_use"},
        {
            "content": [{"type": "tool_use", "id": "a", "name": "b", "input": "{"}],
            "stop_reason": "tool_use",
        },
    ],
)
def test_a_whole_answer_that_breaks_the_protocol_is_malformed(body: Json) -> None:
    assert failed(http(200, body), is_streamed=False).kind == "malformed"


def test_half_of_a_character_in_the_request_is_named_before_anything_is_sent() -> None:
    async def story() -> ModelFault:
        async with serve() as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            what = await fault(model, ask(messages=[said("user", "a\ud800b")]))
            await model.close()
            assert wire.requests == []
        return what

    what = asyncio.run(story())
    assert what.kind == "invalid_request"
    assert "surrogates" in what.message


@pytest.mark.parametrize(
    ("header", "low", "high"),
    [
        ("171", 171, 171),
        ("1.5", 1.5, 1.5),
        ("soon", 0, 0),
        ("-3", 0, 0),
        ("999999", 999999, 999999),
        ("inf", 0, 0),
        ("date", 100, 120),
    ],
)
def test_the_wait_that_is_asked_for_is_read_from_seconds_and_dates(
    header: str, low: float, high: float
) -> None:
    if header == "date":
        at = datetime.datetime.fromtimestamp(time.time() + 120, datetime.UTC)
        header = email.utils.format_datetime(at, usegmt=True)
    what = failed(http(429, error("rate_limit_error"), {"retry-after": header}))
    assert what.kind == "rate_limited"
    assert low <= what.retry_after_s <= high


@pytest.mark.parametrize("url", ["nonsense", "ftp://127.0.0.1:1"])
def test_an_address_that_is_none_is_not_tried_again(url: str) -> None:
    async def story() -> ModelFault:
        model = AnthropicModel("m", base_url=url, api_key="k")
        return await fault(model, ask())

    assert asyncio.run(story()).kind not in TRANSIENT


def test_an_exception_of_the_receiver_of_deltas_passes_through_and_closes_the_socket() -> None:
    async def story() -> None:
        def refuse(_: object) -> None:
            raise ZeroDivisionError("mine")

        async with serve(stream(*HELLO, hold=True)) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            with pytest.raises(ZeroDivisionError, match="mine"):
                await model.respond(ask(), on_delta=refuse)
            await asyncio.wait_for(wire.gone.wait(), 2)
            await model.close()

    asyncio.run(story())


def test_the_error_names_its_kind_and_the_deltas_of_calls_count_as_given_out() -> None:
    async def story() -> None:
        deltas = Deltas()
        async with serve(stream(message_start(), call_block("")[0])) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            with pytest.raises(ModelError, match="network: anthropic: the stream ended") as failed:
                await model.respond(ask(), on_delta=deltas)
            await model.close()
        assert failed.value.fault.is_committed
        assert deltas == [ToolDelta(0, id="t1", name="send")]

    asyncio.run(story())


def test_after_a_fault_the_same_model_answers_again() -> None:
    async def story() -> None:
        with FakeAnthropic([hang_up(), turn(text("ok"))]) as fake:
            model = AnthropicModel("m", base_url=fake.base_url, api_key="k")
            await fault(model, ask(), on_delta=Deltas())
            answer = await model.respond(ask(), on_delta=Deltas())
            assert answer.content[0]["text"] == "ok"
            await model.close()

    asyncio.run(story())


def test_counts_that_are_no_numbers_count_nothing() -> None:
    start = message_start()
    start["message"]["usage"] = {"input_tokens": "11", "output_tokens": -1}
    what = failed(stream(start))
    assert what.usage == Usage(is_estimated=True)


ASKED = httpx2.Request("POST", "http://x")
LOST = anthropic.APIConnectionError(request=ASKED)
LOST_FOR_A_REASON = anthropic.APIConnectionError(request=ASKED)
LOST_FOR_A_REASON.__cause__ = httpx2.ConnectTimeout("slow")


@pytest.mark.parametrize(
    ("exc", "expected"),
    [
        (httpx2.RemoteProtocolError("peer closed"), "network"),
        (httpx2.ReadError("reset"), "network"),
        (httpx2.ConnectError("refused"), "network"),
        (ConnectionResetError("reset"), "network"),
        (httpx2.ReadTimeout("slow"), "timeout"),
        (httpx2.PoolTimeout("busy"), "timeout"),
        (anthropic.APITimeoutError(ASKED), "timeout"),
        (LOST, "network"),
        (LOST_FOR_A_REASON, "timeout"),
        (ValueError("a bad chunk of an event stream"), "malformed"),
        (UnicodeEncodeError("utf-8", "\ud800", 0, 1, "surrogates not allowed"), "invalid_request"),
        (
            anthropic.APIResponseValidationError(httpx2.Response(200, request=ASKED), None),
            "malformed",
        ),
        (anthropic.CredentialsError("the token file is empty"), "auth"),
        (httpx2.UnsupportedProtocol("ftp"), "other"),
        (RuntimeError("what is this"), "other"),
        (DeprecationWarning("the model is deprecated"), "other"),
    ],
)
def test_every_exception_of_the_client_and_its_transport_is_named(
    exc: Exception, expected: str
) -> None:
    what = fault_of(exc)
    assert what.kind == expected
    assert what.message.startswith("anthropic: ")


def test_an_error_in_a_shape_of_its_own_is_named_by_its_status() -> None:
    what = failed(http(502, b"<html>" + b"x" * 5000))
    assert what.kind == "server"
    assert len(what.message) < 1100
    assert failed(http(400, {"error": "just text"})).message.count("just text") == 1


def test_a_timeout_of_the_receiver_of_deltas_is_its_own() -> None:
    async def story() -> None:
        def refuse(_: object) -> None:
            raise TimeoutError("mine")

        async with serve(stream(*HELLO)) as wire:
            model = AnthropicModel("m", base_url=wire.url, api_key="k")
            with pytest.raises(TimeoutError, match="mine"):
                await model.respond(ask(), on_delta=refuse)
            await model.close()

    asyncio.run(story())
