"""Replies of the gateway: JSON, and in every one that is about a run its id in a header."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from starlette.responses import Response

RUN_HEADER = "treadle-run-id"
_JSON = "application/json"


class Refusal(Exception):
    """A request that is refused, with the status and a text for whoever sent it."""

    def __init__(
        self, status: int, type: str, text: str, headers: Mapping[str, str] | None = None
    ) -> None:
        self.status = status
        self.type = type
        self.text = text
        self.headers = dict(headers or {})
        super().__init__(text)

    def reply(self) -> Response:
        error = {"error": {"type": self.type, "message": self.text}}
        return json(self.status, error, headers=self.headers)


def json(
    status: int, value: object, run: str = "", headers: Mapping[str, str] | None = None
) -> Response:
    """Return a reply with a value as JSON."""
    named = {RUN_HEADER: run} if run else {}
    return Response(
        msgspec.json.encode(value),
        status,
        headers={**named, **(headers or {})},
        media_type=_JSON,
    )


def raw(status: int, body: bytes, run: str, headers: Mapping[str, str]) -> Response:
    """Return a response that a run gives: JSON, or a text as it is if the headers say so."""
    named = {name.lower(): value for name, value in headers.items()}
    kind = named.setdefault("content-type", _JSON)
    is_json = kind.partition(";")[0].strip().endswith(("/json", "+json"))
    if not is_json and body.startswith(b'"'):
        body = msgspec.json.decode(body, type=str).encode()
    if status in (204, 205, 304):
        body = b""
    return Response(body, status, headers={RUN_HEADER: run, **named})
