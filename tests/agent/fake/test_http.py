"""Headers, paths and bodies that no client of the API's own would send.

Method: plain ``http.client``, one connection, bytes as they are.
"""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from treadle.worker.agent.testing import FakeAnthropic, text, turn

HEADERS = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
BODY: dict[str, Any] = {
    "model": "m",
    "max_tokens": 9,
    "messages": [{"role": "user", "content": "hi"}],
}


@contextmanager
def _connected(fake: FakeAnthropic) -> Iterator[http.client.HTTPConnection]:
    connection = http.client.HTTPConnection(fake.base_url.removeprefix("http://"), timeout=5)
    try:
        yield connection
    finally:
        connection.close()


def _ask(
    connection: http.client.HTTPConnection,
    body: Any = None,
    *,
    headers: dict[str, str] | None = None,
    method: str = "POST",
    path: str = "/v1/messages",
    encode_chunked: bool = False,
) -> tuple[int, Any]:
    raw = body if isinstance(body, bytes) else json.dumps(body or BODY).encode()
    sent = iter([raw[:5], raw[5:]]) if encode_chunked else raw
    extra = {"transfer-encoding": "chunked"} if encode_chunked else {}
    connection.request(
        method, path, sent, {**(headers or HEADERS), **extra}, encode_chunked=encode_chunked
    )
    response = connection.getresponse()
    answer = json.loads(response.read())
    assert (
        answer.get("request_id", response.headers["request-id"]) == response.headers["request-id"]
    )
    return response.status, answer


def test_a_request_without_a_key_or_a_version_is_refused() -> None:
    with FakeAnthropic() as fake, _connected(fake) as connection:
        status, body = _ask(connection, headers={"anthropic-version": "2023-06-01"})
        assert status == 401
        assert body["error"] == {
            "type": "authentication_error",
            "message": "x-api-key header is required",
        }
        status, body = _ask(connection, headers={"x-api-key": "k"})
        assert (status, body["error"]["message"]) == (400, "anthropic-version: header is required")
        status, body = _ask(connection, headers={"x-api-key": "k", "anthropic-version": "new"})
        assert status == 400 and "not a valid version" in body["error"]["message"]


def test_only_the_given_key_is_let_in_as_header_or_as_bearer() -> None:
    with FakeAnthropic([turn(text("a"))] * 2, api_key="k") as fake, _connected(fake) as connection:
        status, body = _ask(connection, headers={**HEADERS, "x-api-key": "other"})
        assert (status, body["error"]["message"]) == (401, "invalid x-api-key")
        assert _ask(connection)[0] == 200
        bearer = {"authorization": "Bearer k", "anthropic-version": "2023-06-01"}
        assert _ask(connection, headers=bearer)[0] == 200


def test_other_paths_and_methods_are_refused_and_not_recorded() -> None:
    with FakeAnthropic() as fake, _connected(fake) as connection:
        status, body = _ask(connection, path="/v1/complete")
        assert (status, body["error"]["type"]) == (404, "not_found_error")
        assert _ask(connection, method="PUT")[0] == 405
        assert fake.count == 0


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b"{", "The request body is not valid JSON"),
        (b'{"a": "\xff"}', "The request body is not valid JSON"),
        (b'{"a": NaN}', "NaN is no JSON number"),
        (b"[]", "valid dictionary"),
        (rb'{"a": "\ud83e"}', r"no low surrogate in string: line 1 column 8 \(char 7\)"),
        (rb'{"a": "\udd75"}', "no low surrogate in string"),
        (rb'{"\ud83e": 1}', "no low surrogate in string"),
    ],
)
def test_a_body_that_is_not_strict_json_is_refused_and_recorded(body: bytes, why: str) -> None:
    with FakeAnthropic() as fake, _connected(fake) as connection:
        status, answer = _ask(connection, body)
        assert (status, answer["error"]["type"]) == (400, "invalid_request_error")
        assert re.search(why, answer["error"]["message"])
        assert fake.requests[0].raw == body and fake.requests[0].body == {}


def test_a_whole_surrogate_pair_is_one_character() -> None:
    body = {**BODY, "messages": [{"role": "user", "content": "🧵"}]}
    with FakeAnthropic([turn(text("a"))]) as fake, _connected(fake) as connection:
        assert rb"\ud83e\uddf5" in json.dumps(body).encode()
        assert _ask(connection, body)[0] == 200
        assert fake.requests[0].last_text == "🧵"


def test_requests_share_a_connection_and_may_come_in_chunks() -> None:
    with FakeAnthropic([turn(text("a")), turn(text("b"))]) as fake, _connected(fake) as connection:
        assert _ask(connection, encode_chunked=True)[1]["content"][0]["text"] == "a"
        first = connection.sock
        assert _ask(connection)[1]["content"][0]["text"] == "b"
        assert connection.sock is first and first is not None


def test_a_body_larger_than_the_api_takes_is_refused_unread() -> None:
    with FakeAnthropic() as fake, _connected(fake) as connection:
        connection.putrequest("POST", "/v1/messages")
        connection.putheader("content-length", str(33 * 1024 * 1024))
        connection.endheaders()
        response = connection.getresponse()
        assert response.status == 413
        assert json.loads(response.read())["error"]["type"] == "request_too_large"


CHUNKED = b"POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n"
NO_HTTP = [
    (b"nonsense\r\n\r\n", b"400 Bad Request"),
    (b"POST / HTTP/1.1\r\ncontent-length: x\r\n\r\n", b"400 Bad Request"),
    (b"x" * 70_000, b"400 Bad Request"),
    (CHUNKED + b"zz\r\n", b"400 Bad Request"),
    (CHUNKED + b"fffffff\r\n", b"413 "),
]


@pytest.mark.parametrize(("sent", "status"), NO_HTTP)
def test_what_is_no_http_is_refused(sent: bytes, status: bytes) -> None:
    with FakeAnthropic() as fake, _connected(fake) as connection:
        connection.connect()
        connection.sock.sendall(sent)
        with connection.sock.makefile("rb") as answer:
            assert answer.readline().startswith(b"HTTP/1.1 " + status)
