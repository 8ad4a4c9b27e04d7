"""HTTP/1.1 on asyncio streams: enough of it for one client at a time on a loopback socket.

A peer keeps what it has read, so that it can watch for the client's goodbye while an answer is
being sent without losing a byte of a next request.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import cast

READ_BYTES = 64 * 1024
HEAD_BYTES_MAX = 64 * 1024
BODY_BYTES_MAX = 32 * 1024 * 1024
"""The API's own limit of a request."""


class Malformed(Exception):
    """What came is not HTTP as this server reads it."""


class BodyTooLarge(Exception):
    """The body is larger than the API takes."""


@dataclass(frozen=True)
class HttpRequest:
    """A request that has arrived whole."""

    method: str
    path: str
    """Without the query."""
    headers: dict[str, str]
    """The names are in lower case."""
    body: bytes


class Peer:
    """One connection of a client."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._buffer = bytearray()
        self.is_closed = False
        """True once this side has closed it."""

    async def read_request(self) -> HttpRequest | None:
        """Return the next request, or ``None`` when the client has gone."""
        head = await self._read_until(b"\r\n\r\n")
        if head is None:
            return None
        request_line, *lines = head.decode("latin-1").split("\r\n")
        parts = request_line.split(" ")
        if len(parts) != 3:
            raise Malformed(f"the request line {request_line!r} has not three parts")
        headers: dict[str, str] = {}
        for line in filter(None, lines):
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        body = await self._read_body(headers)
        if body is None:
            return None
        return HttpRequest(parts[0], parts[1].partition("?")[0], headers, body)

    async def wait_client_closed(self) -> None:
        """Return when the client has closed its side; keep what it sends until then."""
        while await self._read_more():
            pass

    def send_head(self, status: int, headers: Mapping[str, str], size_bytes: int | None) -> None:
        """Begin an answer; without a size its body is sent in chunks."""
        length = "transfer-encoding: chunked"
        if size_bytes is not None:
            length = f"content-length: {size_bytes}"
        try:
            reason = HTTPStatus(status).phrase
        except ValueError:
            reason = "Overloaded"
        fields = [f"{name}: {value}" for name, value in headers.items()]
        lines = [f"HTTP/1.1 {status} {reason}", *fields, length]
        self._writer.write(("\r\n".join(lines) + "\r\n\r\n").encode("latin-1"))

    async def send(self, data: bytes, *, chunked: bool) -> None:
        """Send a part of a body; raise ``ConnectionError`` if the client is gone."""
        if data and chunked:
            data = f"{len(data):x}\r\n".encode() + data + b"\r\n"
        self._writer.write(data)
        await self._writer.drain()

    async def end_chunks(self) -> None:
        """End a body that was sent in chunks."""
        await self.send(b"0\r\n\r\n", chunked=False)

    async def close(self, *, reset: bool = False) -> None:
        """Close the socket; with ``reset`` the client sees a connection reset."""
        self.is_closed = True
        if reset:
            raw = cast("socket.socket", self._writer.get_extra_info("socket"))
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._writer.close()
        with contextlib.suppress(ConnectionError):
            await self._writer.wait_closed()

    async def _read_more(self) -> bool:
        try:
            data = await self._reader.read(READ_BYTES)
        except ConnectionError:
            return False
        self._buffer += data
        return bool(data)

    async def _read_until(self, mark: bytes) -> bytes | None:
        while (end := self._buffer.find(mark)) < 0:
            if len(self._buffer) > HEAD_BYTES_MAX:
                raise Malformed(f"the head is larger than {HEAD_BYTES_MAX} bytes")
            if not await self._read_more():
                return None
        found = bytes(self._buffer[:end])
        del self._buffer[: end + len(mark)]
        return found

    async def _read_exactly(self, size_bytes: int) -> bytes | None:
        while len(self._buffer) < size_bytes:
            if not await self._read_more():
                return None
        found = bytes(self._buffer[:size_bytes])
        del self._buffer[:size_bytes]
        return found

    async def _read_body(self, headers: dict[str, str]) -> bytes | None:
        if headers.get("transfer-encoding", "").lower() == "chunked":
            return await self._read_chunks()
        length = headers.get("content-length", "0")
        if not length.isdecimal():
            raise Malformed(f"the content-length {length!r} is no number")
        if int(length) > BODY_BYTES_MAX:
            raise BodyTooLarge
        return await self._read_exactly(int(length))

    async def _read_chunks(self) -> bytes | None:
        body = bytearray()
        while True:
            line = await self._read_until(b"\r\n")
            if line is None:
                return None
            try:
                size_bytes = int(line.partition(b";")[0], 16)
            except ValueError as exc:
                raise Malformed(f"the chunk size {line!r} is no number") from exc
            if len(body) + size_bytes > BODY_BYTES_MAX:
                raise BodyTooLarge
            chunk = await self._read_exactly(size_bytes + 2)
            if chunk is None:
                return None
            if size_bytes == 0:
                return bytes(body)
            body += chunk[:-2]
