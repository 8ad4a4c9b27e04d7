"""The frame parser and the headers, without a server.

Method: whole streams of frames, cut at every possible place; hypothesis for the cuts.
"""

from __future__ import annotations

import itertools
import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.bus.wire import (
    FrameParser,
    MalformedFrame,
    Message,
    decode_headers,
    encode_headers,
    status_of,
)

Frame = tuple[bytes, bytes, bytes | None, bytes]

STREAM = (
    b'INFO {"a":1}\r\n'
    b"MSG s.a 1 5\r\nhello\r\n"
    b"PING\r\n"
    b"MSG s.b 1 reply.x 0\r\n\r\n"
    b"HMSG s.c 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\n"
    b"PONG\r\n"
    b"HMSG s.d 1 r.y 16 22\r\nNATS/1.0 503\r\n\r\nMSG \r\n\r\n"
    b"MSG s.e 1 10\r\nMSG x 1 2\n\r\n"
    b"+OK\r\n-ERR 'x'\r\n"
)
FRAMES: list[Frame] = [
    (b"s.a", b"", None, b"hello"),
    (b"s.b", b"reply.x", None, b""),
    (b"s.c", b"", b"NATS/1.0\r\n\r\n", b"hi"),
    (b"s.d", b"r.y", b"NATS/1.0 503\r\n\r\n", b"MSG \r\n"),
    (b"s.e", b"", None, b"MSG x 1 2\n"),
]
CONTROL = b"INFO {\"a\":1}\r\nPING\r\nPONG\r\n+OK\r\n-ERR 'x'\r\n"


def collect(parts: list[bytes]) -> tuple[list[Frame], bytes]:
    frames: list[Frame] = []
    parser = FrameParser({b"1": lambda *frame: frames.append(frame)})
    control = b"".join(parser.feed(part) for part in parts)
    return frames, control


def test_messages_are_dispatched_and_every_other_line_is_handed_back() -> None:
    assert collect([STREAM]) == (FRAMES, CONTROL)


def test_a_stream_cut_into_single_bytes_gives_the_same_frames() -> None:
    assert collect([bytes([byte]) for byte in STREAM]) == (FRAMES, CONTROL)


@given(st.lists(st.integers(min_value=0, max_value=len(STREAM)), max_size=8))
def test_it_does_not_matter_where_the_stream_is_cut(cuts: list[int]) -> None:
    edges = [0, *sorted(cuts), len(STREAM)]
    parts = [STREAM[a:b] for a, b in itertools.pairwise(edges) if a < b]
    assert collect(parts) == (FRAMES, CONTROL)


def test_a_large_message_in_many_chunks_comes_whole() -> None:
    body = bytes(range(256)) * 2048
    data = b"MSG s 1 %d\r\n%b\r\nMSG s 1 1\r\nx\r\n" % (len(body), body)
    frames, _ = collect([data[i : i + 1000] for i in range(0, len(data), 1000)])
    assert [frame[3] for frame in frames] == [body, b"x"]


def test_a_message_of_an_unknown_subscription_is_skipped() -> None:
    assert collect([b"MSG s 7 1\r\nx\r\nMSG s 1 1\r\ny\r\n"])[0] == [(b"s", b"", None, b"y")]


def test_a_handler_that_raises_costs_no_other_message(caplog: pytest.LogCaptureFixture) -> None:
    seen: list[bytes] = []

    def handler(subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        seen.append(data)
        raise RuntimeError("a bug")

    with caplog.at_level(logging.ERROR, "treadle.bus"):
        FrameParser({b"1": handler}).feed(b"MSG s 1 1\r\nx\r\nMSG s 1 1\r\ny\r\n")
    assert seen == [b"x", b"y"]
    assert [record.message for record in caplog.records] == ["bus.handler-failed subject=s"] * 2


def test_a_reset_forgets_the_frame_that_had_begun() -> None:
    frames: list[Frame] = []
    parser = FrameParser({b"1": lambda *frame: frames.append(frame)})
    parser.feed(b"MSG s 1 100\r\nxxx")
    parser.reset()
    parser.feed(b"MSG s 1 1\r\ny\r\n")
    assert frames == [(b"s", b"", None, b"y")]


def test_what_is_not_the_protocol_is_refused() -> None:
    for junk in (b"MSG s 1 many\r\n", b"MSG\r\n", b"MSG s\r\n"):
        with pytest.raises(MalformedFrame):
            collect([junk])


def test_headers_survive_a_round_trip() -> None:
    headers = {"Nats-Msg-Id": "run:step:0:complete:ab12", "traceparent": "00-11-22-01"}
    assert decode_headers(encode_headers(headers)) == headers
    assert encode_headers({}) == b""
    assert decode_headers(None) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("a", "x\r\nNats-Rollup: all"),
        ("a\n", "x"),
        ("a:b", "x"),
        ("", "x"),
        ("a", "é"),
        ("a", "\0"),
    ],
)
def test_a_header_cannot_smuggle_another_line(name: str, value: str) -> None:
    with pytest.raises(ValueError):
        encode_headers({name: value})


def test_a_status_is_read_from_the_first_line() -> None:
    raw = b"NATS/1.0 409 Consumer Deleted\r\nNats-Pending-Messages: 4\r\n\r\n"
    message = Message("s", "", raw, b"")
    assert (message.status, message.description) == (409, "Consumer Deleted")
    assert message.headers == {"Nats-Pending-Messages": "4"}
    assert status_of(b"NATS/1.0\r\na: b\r\n\r\n") == 0
    assert status_of(None) == 0
    assert Message("s", "", None, b"").description == ""
