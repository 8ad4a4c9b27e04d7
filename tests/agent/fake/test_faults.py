"""Answers that go wrong: errors, cuts, stalls and malformed streams, as the SDK sees them.

Method: the script breaks one answer at a known place; the SDK's exception or the part of the
message it got is compared.
"""

from __future__ import annotations

import datetime
import email.utils
import json
import threading
from collections.abc import Callable
from typing import Any

import anthropic
import httpx2
import pytest

from treadle.worker.agent.testing import (
    FakeAnthropic,
    Gate,
    cut_after,
    error,
    error_after,
    hang_up,
    malformed_tool_use,
    no_message_stop,
    raw_sse,
    stall_after,
    text,
    tool_use,
    turn,
)

Sdk = Callable[..., Any]
Ask = dict[str, Any]
SAID = "one two three four five six seven"
STARTS = 3
"""``message_start``, ``content_block_start`` and ``ping``: then come the deltas of ``SAID``."""


def _texts(stream: Any, into: list[str]) -> None:
    for event in stream:
        if event.type == "content_block_delta":
            into.append(event.delta.text)


@pytest.mark.parametrize(
    ("status", "kind", "caught"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
def test_an_error_has_its_status_and_type(
    sdk: Sdk, ask: Ask, stream: bool, status: int, kind: str, caught: type[anthropic.APIStatusError]
) -> None:
    with FakeAnthropic([error(status, message="no"), turn(text("a"))]) as fake:
        with pytest.raises(caught) as raised:
            sdk(fake).messages.create(**ask, stream=stream)
        assert raised.value.status_code == status and raised.value.type == kind
        assert raised.value.body == {
            "type": "error",
            "error": {"type": kind, "message": "no"},
            "request_id": raised.value.request_id,
        }
        assert (fake.requests[0].status, fake.requests[0].error) == (status, "no")
        assert fake.remaining == 1  # The error was a turn.


def test_retry_after_is_seconds_a_time_or_the_header_as_it_is(sdk: Sdk, ask: Ask) -> None:
    at = datetime.datetime(2027, 3, 1, 12, 30, tzinfo=datetime.UTC)
    script = [error(429, retry_after=each) for each in (7, 0.5, at, "soon")] + [error(529)]
    seen: list[str | None] = []
    with FakeAnthropic(script) as fake:
        for _ in script:
            with pytest.raises(anthropic.APIStatusError) as raised:
                sdk(fake).messages.create(**ask)
            seen.append(raised.value.response.headers.get("retry-after"))
    assert seen == ["7", "0.5", "Mon, 01 Mar 2027 12:30:00 GMT", "soon", None]
    assert email.utils.parsedate_to_datetime(str(seen[2])) == at


@pytest.mark.parametrize("place", [STARTS + 2, "content_block_stop"])
def test_a_stream_is_cut_after_that_event(sdk: Sdk, ask: Ask, place: int | str) -> None:
    said: list[str] = []
    with FakeAnthropic([turn(text(SAID), fault=cut_after(place))]) as fake:
        with (
            sdk(fake).messages.create(**ask, stream=True) as stream,
            pytest.raises(httpx2.RemoteProtocolError),
        ):
            _texts(stream, said)
        assert fake.requests[0].answered_at is None
        assert fake.requests[0].client_closed_at is None
    assert "".join(said) == (SAID[:24] if place == STARTS + 2 else SAID)


def test_a_stream_is_cut_after_that_byte(sdk: Sdk, ask: Ask) -> None:
    with (
        FakeAnthropic([turn(text(SAID), fault=cut_after(size_bytes=100))]) as fake,
        sdk(fake).messages.with_streaming_response.create(**ask, stream=True) as response,
    ):
        with pytest.raises(httpx2.RemoteProtocolError):
            got = b""
            for part in response.iter_bytes():
                got += part
        assert len(got) == 100 and got.startswith(b"event: message_start\n")


def test_a_cut_can_be_a_reset(sdk: Sdk, ask: Ask) -> None:
    with (
        FakeAnthropic([turn(text(SAID), fault=cut_after(STARTS, reset=True))]) as fake,
        sdk(fake).messages.create(**ask, stream=True) as stream,
        pytest.raises(httpx2.ReadError),
    ):
        _texts(stream, [])


@pytest.mark.parametrize("place", [cut_after(0), cut_after(1), cut_after(size_bytes=9)])
def test_a_whole_answer_can_be_cut(sdk: Sdk, ask: Ask, place: Any) -> None:
    with (
        FakeAnthropic([turn(text(SAID), fault=place)]) as fake,
        pytest.raises((anthropic.APIConnectionError, httpx2.RemoteProtocolError)),
    ):
        sdk(fake).messages.create(**ask)


@pytest.mark.parametrize("stream", [False, True])
def test_a_server_can_hang_up_without_a_word(sdk: Sdk, ask: Ask, stream: bool) -> None:
    with FakeAnthropic([hang_up()]) as fake:
        with pytest.raises(anthropic.APIConnectionError):
            sdk(fake).messages.create(**ask, stream=stream)
        assert fake.requests[0].status is None


@pytest.mark.parametrize("stream", [False, True])
def test_a_stalled_answer_goes_on_when_its_gate_opens(sdk: Sdk, ask: Ask, stream: bool) -> None:
    gate, said, got = Gate(), list[str](), threading.Event()

    def _listen(fake: FakeAnthropic) -> None:
        if not stream:
            said.append(sdk(fake).messages.create(**ask).content[0].text)
            return
        for event in sdk(fake).messages.create(**ask, stream=True):
            if event.type == "content_block_delta":
                said.append(event.delta.text)
                got.set()

    with FakeAnthropic([turn(text(SAID), fault=stall_after(STARTS + 1, gate=gate))]) as fake:
        listener = threading.Thread(target=_listen, args=[fake])
        listener.start()
        gate.wait_reached()
        if stream:
            assert got.wait(5)
        assert said == ([SAID[:12]] if stream else [])
        assert fake.requests[0].answered_at is None
        gate.open()
        listener.join(5)
        assert "".join(said) == SAID
        assert fake.wait_answered(1).answered_at is not None


def test_a_stall_without_a_gate_lasts_until_the_fake_ends(sdk: Sdk, ask: Ask) -> None:
    with FakeAnthropic([turn(text(SAID), fault=stall_after("message_start"))]) as fake:
        hurried = sdk(fake).with_options(timeout=0.3)
        with (
            hurried.messages.create(**ask, stream=True) as stream,
            pytest.raises((anthropic.APITimeoutError, httpx2.ReadTimeout)),
        ):
            _texts(stream, [])
        assert fake.wait_client_closed(1).client_closed_at is not None


def test_a_gate_nobody_comes_to_says_so() -> None:
    with pytest.raises(TimeoutError, match="no answer came to this gate within"):
        Gate().wait_reached(timeout_s=0.01)


def test_an_error_in_a_stream_keeps_the_status_of_the_stream(sdk: Sdk, ask: Ask) -> None:
    said: list[str] = []
    with (
        FakeAnthropic([turn(text(SAID), fault=error_after(STARTS + 1))]) as fake,
        sdk(fake).messages.create(**ask, stream=True) as stream,
        pytest.raises(anthropic.APIStatusError) as raised,
    ):
        _texts(stream, said)
    assert (raised.value.status_code, raised.value.type) == (200, "overloaded_error")
    assert said == [SAID[:12]]


def test_the_same_error_in_a_whole_answer_is_its_status(sdk: Sdk, ask: Ask) -> None:
    fault = error_after(0, "rate_limit_error", "slow down")
    with (
        FakeAnthropic([turn(text(SAID), fault=fault)]) as fake,
        pytest.raises(anthropic.RateLimitError, match="slow down"),
    ):
        sdk(fake).messages.create(**ask)


def test_a_stream_can_end_without_message_stop(sdk: Sdk, ask: Ask) -> None:
    script = [turn(text(SAID), tool_use("a", {"b": 1}), fault=no_message_stop())] * 2
    with FakeAnthropic(script) as fake:
        kinds = [event.type for event in sdk(fake).messages.create(**ask, stream=True)]
        assert kinds[-1] == "message_delta" and "message_stop" not in kinds
        assert fake.wait_answered(1).answered_at is not None
        assert sdk(fake).messages.create(**ask).stop_reason == "tool_use"


def test_the_input_of_a_call_can_be_cut_off(sdk: Sdk, ask: Ask) -> None:
    half = '{"to": "bob", "amount": 10'
    script = [turn(malformed_tool_use("pay", half), stop_reason="max_tokens")] * 2
    with FakeAnthropic(script) as fake:
        parts = [
            event.delta.partial_json
            for event in sdk(fake).messages.create(**ask, stream=True)
            if event.type == "content_block_delta"
        ]
        assert "".join(parts) == half
        whole = sdk(fake).messages.create(**ask)
        assert whole.content[0].input == {} and whole.stop_reason == "max_tokens"


def test_the_input_of_a_call_can_be_no_json_at_all(sdk: Sdk, ask: Ask) -> None:
    with (
        FakeAnthropic([turn(malformed_tool_use("pay", '{"to": bob}'))]) as fake,
        sdk(fake).messages.stream(**ask) as stream,
        pytest.raises(ValueError),
    ):
        stream.get_final_message()


def test_raw_bytes_are_sent_as_they_are_and_wait_at_their_gates(sdk: Sdk, ask: Ask) -> None:
    start = {"type": "message_start", "message": {"usage": {}}}
    gate = Gate()
    gate.open()  # An open gate holds nobody up.
    pieces = (f"event: message_start\ndata: {json.dumps(start)[:20]}", json.dumps(start)[20:])
    raw = raw_sse(pieces[0].encode(), gate, pieces[1].encode() + b"\n\n")
    with FakeAnthropic([raw, raw_sse(b"event: message_st", cut=True)]) as fake:
        events = list(sdk(fake).messages.create(**ask, stream=True))
        assert [event.type for event in events] == ["message_start"]
        gate.wait_reached()
        with (
            sdk(fake).messages.create(**ask, stream=True) as stream,
            pytest.raises(httpx2.RemoteProtocolError),
        ):
            list(stream)


def test_a_place_that_the_stream_does_not_have_fails_the_test(sdk: Sdk, ask: Ask) -> None:
    with (
        pytest.raises(AssertionError, match="has no event 'message_end'"),
        FakeAnthropic([turn(text("a"), fault=cut_after("message_end"))]) as fake,
        pytest.raises(anthropic.NotFoundError),
    ):
        sdk(fake).messages.create(**ask, stream=True)
