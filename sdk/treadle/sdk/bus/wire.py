"""Frames, headers and messages of the NATS client protocol; pure, no I/O.

``FrameParser`` takes bytes as they come from the socket. It hands each MSG and HMSG frame to the
handler of its subscription, at once and synchronously, and returns every other protocol line
(INFO, PING, PONG, +OK, -ERR) untouched: those are nats-py's business.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping

_log = logging.getLogger("treadle.bus")

CRLF = b"\r\n"
_VERSION = b"NATS/1.0"
_M, _H = b"MH"

RawHandler = Callable[[bytes, bytes, bytes | None, bytes], None]
"""Takes subject, reply subject, raw headers (None if there are none) and data of one message."""


class Unknown(Exception):
    """No answer came: whether the request had an effect is unknown. Never reaches users."""


class MalformedFrame(Exception):
    """The server sent what is not the NATS protocol; the connection cannot be used any more."""


class Message:
    """A received message. Headers are parsed when asked for."""

    __slots__ = ("data", "raw_headers", "reply", "subject")

    def __init__(self, subject: str, reply: str, raw_headers: bytes | None, data: bytes) -> None:
        self.subject = subject
        self.reply = reply
        self.raw_headers = raw_headers
        self.data = data

    @property
    def headers(self) -> dict[str, str]:
        return decode_headers(self.raw_headers)

    @property
    def status(self) -> int:
        """The status code the server put in place of a message; 0 for an ordinary message."""
        return status_of(self.raw_headers)

    @property
    def description(self) -> str:
        """The text beside the status code."""
        raw = self.raw_headers
        return raw[13 : raw.find(CRLF)].decode("ascii", "replace").strip() if raw else ""

    def __repr__(self) -> str:
        return f"Message({self.subject!r}, {len(self.data)} bytes, status={self.status})"


def status_of(raw: bytes | None) -> int:
    """Return the status code in raw headers (``NATS/1.0 503 ...``); 0 if there is none."""
    if raw is None or raw[8:9] != b" ":
        return 0
    code = raw[9:12]
    return int(code) if code.isdigit() else 0


def encode_headers(headers: Mapping[str, str]) -> bytes:
    """Return the header block; empty for no headers.

    Raise ``ValueError`` for anything but printable ASCII: a line break would let a value add
    headers, or protocol commands, of its own.
    """
    if not headers:
        return b""
    lines = ["NATS/1.0"]
    for name, value in headers.items():
        if not (name.isprintable() and value.isprintable()) or ":" in name or not name:
            raise ValueError(f"header {name!r}: {value!r} has a character no header may hold")
        lines.append(f"{name}: {value}")
    lines.append("\r\n")
    try:
        return "\r\n".join(lines).encode("ascii")
    except UnicodeEncodeError as exc:
        raise ValueError(f"headers {dict(headers)!r} are not ASCII") from exc


def decode_headers(raw: bytes | None) -> dict[str, str]:
    """Return the headers of a raw block, without the status; of equal names the last wins."""
    headers: dict[str, str] = {}
    if raw is None:
        return headers
    for line in raw.split(CRLF)[1:]:
        name, separator, value = line.partition(b":")
        if separator:
            headers[name.decode("utf-8", "replace")] = value.strip().decode("utf-8", "replace")
    return headers


class FrameParser:
    """Finds message frames in the byte stream and calls the handler of their subscription."""

    __slots__ = ("_chunks", "_handlers", "_missing")

    def __init__(self, handlers: Mapping[bytes, RawHandler]) -> None:
        self._handlers = handlers
        self._chunks: list[bytes] = []
        self._missing = 0

    def reset(self) -> None:
        """Forget a frame that has begun: the next bytes come from a new connection."""
        self._chunks.clear()
        self._missing = 0

    def feed(self, data: bytes) -> bytes:
        """Dispatch all complete messages; return the protocol lines that are no messages.

        Raise ``MalformedFrame`` if it is not the NATS protocol.
        """
        if self._chunks:
            # A large message comes in many chunks: joined once, when it is complete.
            self._chunks.append(data)
            self._missing -= len(data)
            if self._missing > 0:
                return b""
            data = b"".join(self._chunks)
            self._chunks.clear()
        try:
            return self._dispatch(data)
        except (ValueError, IndexError) as exc:
            raise MalformedFrame(f"{data[:80]!r}") from exc

    def _dispatch(self, data: bytes) -> bytes:
        position, end = 0, len(data)
        control = b""
        missing = 1
        while position < end:
            line_end = data.find(CRLF, position)
            if line_end < 0:
                break
            body = line_end + 2
            kind = data[position]
            if kind == _M:
                # MSG <subject> <sid> [reply] <size>
                parts = data[position + 4 : line_end].split()
                stop = body + int(parts[-1])
                if stop + 2 > end:
                    missing = stop + 2 - end
                    break
                reply = parts[2] if len(parts) == 4 else b""
                self._call(parts[1], parts[0], reply, None, data[body:stop])
                position = stop + 2
            elif kind == _H:
                # HMSG <subject> <sid> [reply] <size of headers> <size of both>
                parts = data[position + 5 : line_end].split()
                stop = body + int(parts[-1])
                if stop + 2 > end:
                    missing = stop + 2 - end
                    break
                split = body + int(parts[-2])
                reply = parts[2] if len(parts) == 5 else b""
                self._call(parts[1], parts[0], reply, data[body:split], data[split:stop])
                position = stop + 2
            else:
                control += data[position:body]
                position = body
        if position < end:
            self._chunks.append(data[position:])
            self._missing = missing
        return control

    def _call(
        self, sid: bytes, subject: bytes, reply: bytes, headers: bytes | None, data: bytes
    ) -> None:
        handler = self._handlers.get(sid)
        if handler is None:
            return  # Unsubscribed while the message was on its way.
        try:
            handler(subject, reply, headers, data)
        except Exception:  # noqa: BLE001 - one handler's bug must not cost the others' messages
            _log.exception("bus.handler-failed subject=%s", subject.decode("utf-8", "replace"))
