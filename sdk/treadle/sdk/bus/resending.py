"""A stored message with its headers, and the same message published once more.

What a header says to the server about one write, its id above all, is not said again: the id would
have the copy taken for a duplicate, a rollup would delete what is there.
"""

from __future__ import annotations

import base64
from typing import NamedTuple

from treadle.sdk.bus import acks
from treadle.sdk.bus.jetstream import ApiError, JetStream, Refused
from treadle.sdk.bus.wire import decode_headers

REPLAY_OF = "Treadle-Replay-Of"
"""Header that says of which message, and by which replay, a message is a copy."""
SEND_TIMEOUT_S = 2.0
_OF_ONE_WRITE = (
    b"nats-msg-id:",
    b"nats-expected-",
    b"nats-rollup:",
    b"nats-batch-",
    b"nats-schedul",
    REPLAY_OF.lower().encode() + b":",
)
_CRLF = b"\r\n"


class Whole(NamedTuple):
    """A message as it is stored, with its block of headers."""

    subject: str
    headers: bytes
    data: bytes

    @property
    def replay_of(self) -> str:
        """What it is a copy of; empty if it is none."""
        return decode_headers(self.headers).get(REPLAY_OF, "")


async def whole(js: JetStream, stream: str, sequence: int) -> Whole | None:
    """Return the message with the sequence; None if it, or its stream, is gone."""
    try:
        answer = await js.api(f"STREAM.MSG.GET.{stream}", {"seq": sequence})
    except ApiError as exc:
        if exc.err_code in (*acks.NOT_FOUND, acks.STREAM_NOT_FOUND):
            return None
        raise
    found = answer["message"]
    headers, data = (base64.b64decode(found.get(field, "")) for field in ("hdrs", "data"))
    return Whole(found["subject"], headers, data)


async def resend(
    js: JetStream, message: Whole, stream: str, *, expected: int, replay_of: str
) -> int | Refused:
    """Publish the message as it was, if ``expected`` is the newest sequence on its subject and
    the stream is the one that takes it.

    Raise ``Unknown`` without an answer, ``ApiError`` for any other refusal.
    """
    answer = await js.connection.send_request(
        message.subject,
        message.data,
        headers=copied(message.headers, stream, expected=expected, replay_of=replay_of),
        timeout_s=SEND_TIMEOUT_S,
    )
    ack = acks.write_ack(answer.data)
    if ack.error is None:
        return ack.seq
    if ack.error.err_code in (acks.WRONG_LAST_SEQUENCE, acks.CONFLICT_IN_FLIGHT):
        return Refused(ack.error.err_code)
    raise acks.too_large(message.subject, ack.error) or ack.error.raised()


def copied(headers: bytes, stream: str, *, expected: int, replay_of: str) -> bytes:
    """Return the headers of the copy, those that remain byte for byte."""
    kept = [
        line
        for line in headers.split(_CRLF)[1:]
        if line and not line.lower().startswith(_OF_ONE_WRITE)
    ]
    more = [
        f"{REPLAY_OF}: {replay_of}".encode(),
        f"Nats-Expected-Stream: {stream}".encode(),
        f"Nats-Expected-Last-Subject-Sequence: {expected}".encode(),
    ]
    return _CRLF.join([b"NATS/1.0", *kept, *more, b"", b""])
