"""Bodies of requests: read up to a bound, and made the input of a run."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from starlette.requests import ClientDisconnect, Request

from treadle.engine.gateway.replies import Refusal
from treadle.sdk import payload
from treadle.sdk.errors import InvalidPayload


async def read(request: Request, bytes_max: int) -> bytes:
    """Return the body; raise ``Refusal`` if it has more bytes, as soon as that is known."""
    announced = request.headers.get("content-length", "")
    if announced.isdigit() and int(announced[:20]) > bytes_max:
        raise _too_large(bytes_max)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > bytes_max:
                raise _too_large(bytes_max)
    except ClientDisconnect as exc:
        raise Refusal(400, "Disconnected", "the body ended before its end.") from exc
    return bytes(body)


def input_of(request: Request, body: bytes, headers: Sequence[str]) -> bytes:
    """Return the input of the run as JSON: the body, with the headers that are asked for."""
    raw = msgspec.Raw(body or b"null")
    try:
        payload.decode("body", raw)
        if not headers:
            return bytes(raw)
        kept = {name: request.headers[name] for name in headers if name in request.headers}
        return payload.encode("body", {"headers": kept, "body": raw})
    except InvalidPayload as exc:
        raise Refusal(400, "InvalidPayload", str(exc)) from exc


def _too_large(bytes_max: int) -> Refusal:
    text = f"the body has more than the {bytes_max} bytes that are allowed. Send a reference to it."
    return Refusal(413, "TooLarge", text)
