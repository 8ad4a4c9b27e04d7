"""What JetStream answers: acknowledgements of writes, stored messages, errors; pure."""

from __future__ import annotations

from datetime import datetime
from typing import NamedTuple

import msgspec

from treadle.sdk.bus.wire import decode_headers
from treadle.sdk.errors import InvalidPayload, ServerUnavailable, clause

WRONG_LAST_SEQUENCE = 10071
"""The subject (or filter) has moved: read its head."""
CONFLICT_IN_FLIGHT = 10164
"""R3: another write of the same filter is being decided: transient, try again."""
NOT_FOUND = (10037, 10043)
"""No message on the subject; no message with the sequence."""
STREAM_NOT_FOUND = 10059
CONSUMER_NOT_FOUND = 10014
STREAM_DIFFERS = 10058
CONSUMER_DIFFERS = (10148, 10013)
NO_JETSTREAM = (10039, 10076)
_MESSAGE_TOO_LARGE = 10054
_STORE_FAILED = 10077
"""Mostly a stream that is full and discards new messages."""
_RESOURCES = (10002, 10023, 10047)


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A message as it is stored."""

    sequence: int
    data: bytes
    time_us: int
    """When the server stored it, in microseconds since the epoch; 0 if this process stored it and
    did not ask."""
    subject: str

    @property
    def time_ms(self) -> int:
        """The same in milliseconds."""
        return self.time_us // 1_000


class Refused(msgspec.Struct, frozen=True, gc=False):
    """A compare-and-set that the server refused: it is certain that nothing was stored."""

    err_code: int
    """10071 wrong last sequence, 10164 conflict in flight."""

    @property
    def transient(self) -> bool:
        """Whether the same write may be accepted a few milliseconds later."""
        return self.err_code == CONFLICT_IN_FLIGHT


class CasResult(NamedTuple):
    """What stands after a compare-and-set."""

    stored: Stored | None
    """Set if this write stands: what is stored, not what was meant."""
    head: Stored | None
    """Otherwise the newest message of the subject."""
    newest: int = 0
    """Otherwise the newest sequence under the filter (of the subject, if there is no filter)."""
    is_repeated: bool = False
    """Set if it stood before this write, an equal one: this one was refused, without any doubt."""


class ApiError(Exception):
    """JetStream answered with an error. Internal: users meet it as a ``TreadleError``."""

    def __init__(self, code: int, err_code: int, description: str) -> None:
        self.code = code
        self.err_code = err_code
        self.description = description
        super().__init__(f"{description} ({code}, {err_code})")

    @property
    def transient(self) -> bool:
        """Whether the same request may succeed later: the server is busy, full or electing."""
        return self.code == 503 or self.err_code in _RESOURCES

    @property
    def is_full(self) -> bool:
        """Whether the stream or the account takes no more: the same answer in a minute, mostly."""
        return self.err_code == _STORE_FAILED or self.err_code in _RESOURCES

    def for_users(self, what: str) -> ServerUnavailable:
        """The error a user gets when this one did not go away within the budget."""
        if self.is_full:
            return ServerUnavailable(
                f"{what} was not stored: {clause(self.description)}. "
                "The stream or the account is full and "
                f"takes no more. Delete old runs, or raise its limits."
            )
        return ServerUnavailable(
            f"{what} was not stored: the server answered {self.description!r} "
            f"(code {self.code}, {self.err_code}). See `treadle doctor`."
        )


class Fault(msgspec.Struct, gc=False):
    """The error in an answer."""

    code: int = 0
    err_code: int = 0
    description: str = ""

    def raised(self) -> ApiError:
        return ApiError(self.code, self.err_code, self.description)


class WriteAck(msgspec.Struct, gc=False):
    """The answer to a write."""

    seq: int = 0
    duplicate: bool = False
    error: Fault | None = None


class _RawMessage(msgspec.Struct, gc=False):
    subject: str
    seq: int
    time: str
    data: bytes = b""


class GetAnswer(msgspec.Struct, gc=False):
    """The answer to STREAM.MSG.GET."""

    message: _RawMessage | None = None
    error: Fault | None = None


_decode_ack = msgspec.json.Decoder(WriteAck).decode
_decode_get = msgspec.json.Decoder(GetAnswer).decode


def write_ack(raw: bytes) -> WriteAck:
    return _decode_ack(raw)


def stored_of(raw: bytes) -> Stored | None:
    """Return the message in an answer to STREAM.MSG.GET; raise ``ApiError`` for an error."""
    answer = _decode_get(raw)
    message = answer.message
    if message is not None:
        return Stored(message.seq, message.data, time_us(message.time), message.subject)
    fault = answer.error or Fault(description="an answer without a message")
    if fault.err_code in NOT_FOUND:
        return None
    raise fault.raised()


def stored_of_direct(raw_headers: bytes | None, data: bytes) -> Stored:
    """Return the message of a direct get: its subject, sequence and time are headers."""
    headers = decode_headers(raw_headers)
    return Stored(
        int(headers["Nats-Sequence"]),
        data,
        time_us(headers["Nats-Time-Stamp"]),
        headers["Nats-Subject"],
    )


def time_us(text: str) -> int:
    """Return a RFC 3339 time with up to nine fraction digits as microseconds, rounded down.

    Rounded down like the nanoseconds in a delivery's reply subject, so that both agree.
    """
    seconds, _, rest = text.partition(".")
    if not rest:
        return int(datetime.fromisoformat(text).timestamp()) * 1_000_000
    digits = rest.rstrip("Z")
    zone = "+00:00"
    for sign in "+-":
        if sign in digits:
            digits, _, offset = digits.partition(sign)
            zone = sign + offset
    return int(datetime.fromisoformat(seconds + zone).timestamp()) * 1_000_000 + int(
        digits[:6].ljust(6, "0")
    )


def too_large(subject: str, fault: Fault) -> InvalidPayload | None:
    """Return the user's error if the stream refused the message for its size."""
    if fault.err_code != _MESSAGE_TOO_LARGE:
        return None
    return InvalidPayload(
        f"the message for {subject!r}",
        f"the stream refused its size ({fault.description})",
        "Store the value elsewhere and pass a reference to it, or raise the stream's max_msg_size.",
    )
