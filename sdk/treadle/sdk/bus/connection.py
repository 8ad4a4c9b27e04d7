"""A connection to NATS: publish, subscribe, request.

nats-py connects, authenticates and reconnects (``nats_link.py``); the path of a message is ours:
a publish appends a frame to a list that is written once per turn of the event loop, a received
message calls its subscription's handler from the parser. Nothing is buffered across a
reconnect: a publish while disconnected is refused, so nothing is stored after its caller has
given up. Whoever gets ``Unknown`` reads back what stands.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import TracebackType
from typing import Any

from treadle.sdk.bus import forking
from treadle.sdk.bus.handshake import check_server, connect
from treadle.sdk.bus.nats_link import NatsLink
from treadle.sdk.bus.replies import Replies
from treadle.sdk.bus.wire import (
    CRLF,
    FrameParser,
    Message,
    RawHandler,
    Unknown,
    encode_headers,
)
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.settings import Settings

__all__ = ["Connection", "Message", "Subscription", "Unknown", "encode_headers"]

_log = logging.getLogger("treadle.bus")

FLUSH_TIMEOUT_S = 5.0
CLOSE_TIMEOUT_S = 2.0
_WRITE_BYTES = 256 * 1024
"""Frames are written without waiting for the end of the turn when they reach this size."""
_PIECES_OF_ONE = 4
"""A frame with headers is four pieces of output."""
_UNSENT_BYTES_MAX = 64 * 1024 * 1024
"""Unsent bytes at which a publish is refused: the server does not take them."""


class Subscription:
    """A subject of a connection; it is restored after a reconnect until it is unsubscribed."""

    __slots__ = ("_close", "subject")

    def __init__(self, subject: str, close: Callable[[], Awaitable[None]]) -> None:
        self.subject = subject
        self._close = close

    async def unsubscribe(self) -> None:
        """Stop; what the server has already sent is still delivered before this returns."""
        await self._close()


class Connection:
    """A connection to NATS; made by ``Connection.open``. It belongs to one event loop."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._link = NatsLink(self)
        self._transport: asyncio.WriteTransport | None = None
        self._refusal = "not connected yet"
        self._closing = False
        self._is_cut = False
        self._down_since = 0.0
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._turn_scheduled = False
        self._eager = True
        self._room: asyncio.Future[None] | None = None
        self._flushes: set[asyncio.Future[None]] = set()
        self._handlers: dict[bytes, RawHandler] = {}
        self._subscriptions: dict[int, str] = {}
        self._passing: set[int] = set()
        """Subscriptions that are not restored."""
        self._sid = 0
        self._parser = FrameParser(self._handlers)
        self._reconnect_callbacks: list[Callable[[], None]] = []
        self.inbox_prefix = f"_INBOX.{secrets.token_hex(12)}."
        self._replies = Replies(f"{self.inbox_prefix}r.", self._loop)
        self.max_payload_bytes = 0
        self.server_version = ""

    @classmethod
    async def open(cls, settings: Settings, *, name: str) -> Connection:
        """Connect and check the server.

        Raise ``ServerUnavailable`` if it cannot be reached, ``ServerUnsuitable`` if it is too
        old or has no JetStream. Afterwards the connection comes back by itself, without end.
        """
        self = cls()
        forking.guard(self)
        await connect(self._link, settings, name=name, on_reconnected=self._on_reconnected)
        self.subscribe_raw(f"{self.inbox_prefix}r.*", self._replies.arrived)
        try:
            await check_server(self, self._link.server_info)
        except BaseException:
            await self.close()
            raise
        return self

    async def close(self) -> None:
        """Send what is left and close; requests that wait end with ``Unknown``."""
        self._closing = True
        try:
            await self.flush(CLOSE_TIMEOUT_S)
        except Unknown:
            pass  # Nobody is there to take it.
        self.link_down("the connection was closed")
        self._link.abort()
        await self._link.close()

    async def __aenter__(self) -> Connection:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.close()

    @property
    def is_connected(self) -> bool:
        return self._transport is not None

    # ---------------------------------------------------------------- publish

    def publish(
        self, subject: str, data: bytes = b"", *, reply: str = "", headers: bytes = b""
    ) -> None:
        """Send a message; it is on its way at the end of this turn of the event loop.

        Raise ``Unknown`` when not connected, ``InvalidPayload`` when it is larger than the
        server takes: the server would close the connection.
        """
        if self._refusal:
            raise Unknown(self._refusal)
        if " " in subject or not subject.isprintable():
            raise ValueError(f"not a subject: {subject!r}")
        size = len(data) + len(headers)
        if size > self.max_payload_bytes:
            raise _too_large(subject, len(data), len(headers), self.max_payload_bytes)
        if headers:
            head = f"HPUB {subject} {reply} {len(headers)} {size}\r\n".encode()
            self._out += (head, headers, data, CRLF)
        else:
            head = f"PUB {subject} {reply} {size}\r\n".encode()
            self._out += (head, data, CRLF)
        self._out_bytes += size
        if not self._turn_scheduled:
            self._turn_scheduled = True
            self._loop.call_soon(self._end_of_turn)
            if self._eager:
                self._write_now()
        elif self._out_bytes > _WRITE_BYTES:
            self._write_now()

    def send_request(
        self, subject: str, data: bytes = b"", *, headers: bytes = b"", timeout_s: float = 2.0
    ) -> asyncio.Future[Message]:
        """Send a request and return the future of its answer; it fails with ``Unknown``."""
        if self._refusal:
            raise Unknown(self._refusal)
        reply, answer = self._replies.expect(timeout_s)
        try:
            self.publish(subject, data, reply=reply, headers=headers)
        except BaseException:
            answer.cancel()  # Nobody will look at it.
            raise
        return answer

    async def request(
        self, subject: str, data: bytes = b"", *, headers: bytes = b"", timeout_s: float = 2.0
    ) -> Message:
        """Send a request and return its answer.

        Raise ``Unknown`` when none came in time, the connection was lost or nobody listens.
        """
        return await self.send_request(subject, data, headers=headers, timeout_s=timeout_s)

    async def request_many(
        self,
        subject: str,
        data: bytes,
        *,
        is_last: Callable[[Message], bool],
        timeout_s: float = 5.0,
    ) -> list[Message]:
        """Send a request that is answered by several messages; return them, the last included.

        Raise ``Unknown`` if the last has not come in time.
        """
        reply, collection = self._replies.collect(is_last)
        try:
            self.publish(subject, data, reply=reply)
            async with asyncio.timeout(timeout_s):
                await collection.done
        except TimeoutError as exc:
            raise Unknown("no complete answer within the time limit") from exc
        finally:
            self._replies.forget(reply)
        return collection.messages

    async def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> None:
        """Wait until the server has seen everything sent so far; raise ``Unknown`` if not."""
        if self._transport is None:
            raise Unknown(self._refusal)
        self._write_now()
        seen = await self._link.pong()
        self._flushes.add(seen)
        try:
            async with asyncio.timeout(timeout_s):
                await seen
        except TimeoutError as exc:
            raise Unknown(f"no answer to a PING within {timeout_s} s") from exc
        finally:
            self._flushes.discard(seen)

    async def drain(self) -> None:
        """Wait while much is unsent: for producers that could outrun the server."""
        while self._room is not None:
            await asyncio.shield(self._room)

    def _end_of_turn(self) -> None:
        self._turn_scheduled = False
        # One message a turn: write the next at once, the turn's end is 10 us away. More: the
        # first waits for the others, one write for all is what makes many cheap.
        pieces = len(self._out)
        self._eager = not pieces if self._eager else pieces <= _PIECES_OF_ONE
        self._write_now()

    def _write_now(self) -> None:
        if not self._out:
            return
        frames, self._out, self._out_bytes = b"".join(self._out), [], 0
        transport = self._transport
        if transport is None or transport.is_closing():
            return  # Lost, as if the socket had lost it: link_down tells those who wait.
        transport.write(frames)
        if self._room is not None and transport.get_write_buffer_size() > _UNSENT_BYTES_MAX:
            self._refusal = f"more than {_UNSENT_BYTES_MAX} bytes are unsent"

    # ---------------------------------------------------------------- subscribe

    async def subscribe(self, subject: str, callback: Callable[[Message], None]) -> Subscription:
        """Call back for each message on the subject; the server knows when this returns.

        The callback is synchronous and called from the parser: it must be short. While not
        connected the subscription is only noted, and made with the next connection.
        """

        def handler(topic: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
            callback(Message(topic.decode(), reply.decode(), headers, data))

        subscription = self.subscribe_raw(subject, handler)
        try:
            await self.flush()
        except Unknown:
            pass  # It will be restored by the reconnect.
        return subscription

    def subscribe_raw(
        self, subject: str, handler: RawHandler, *, restored: bool = True
    ) -> Subscription:
        """Subscribe without waiting for the server; the handler takes undecoded parts.

        One that is not ``restored`` ends with the connection it was made on.
        """
        self._sid += 1
        self._handlers[b"%d" % self._sid] = handler
        self._subscriptions[self._sid] = subject
        if not restored:
            self._passing.add(self._sid)
        self._send_line(f"SUB {subject} {self._sid}\r\n")
        return Subscription(subject, partial(self._unsubscribe, self._sid))

    async def _unsubscribe(self, sid: int) -> None:
        if self._subscriptions.pop(sid, None) is None:
            return
        self._passing.discard(sid)
        self._send_line(f"UNSUB {sid}\r\n")
        try:
            await self.flush()
        except Unknown:
            pass  # A new connection does not know the subscription.
        finally:
            self._handlers.pop(b"%d" % sid, None)

    def _send_line(self, line: str) -> None:
        if self._transport is not None:
            self._out.append(line.encode())
            if not self._turn_scheduled:
                self._turn_scheduled = True
                self._loop.call_soon(self._end_of_turn)

    def on_reconnect(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call back after each reconnect, subscriptions restored; return how to stop that."""
        self._reconnect_callbacks.append(callback)
        return lambda: self._reconnect_callbacks.remove(callback)

    async def _on_reconnected(self) -> None:
        _log.info("bus.reconnected after_s=%.1f", time.monotonic() - self._down_since)
        for callback in list(self._reconnect_callbacks):
            try:
                callback()
            except Exception:  # noqa: BLE001 - one reader's bug must not stop the others
                _log.exception("bus.reconnect-callback-failed")

    def cut_off(self) -> int | None:
        """Refuse everything from now on: this process is a forked child (``forking.py``)."""
        transport, self._transport = self._transport, None
        self._refusal, self._is_cut = forking.REFUSAL, True
        self._out, self._out_bytes = [], 0
        socket = transport.get_extra_info("socket") if transport is not None else None
        return int(socket.fileno()) if socket is not None else None

    # ---------------------------------------------------------------- LinkOwner

    def link_up(self, transport: asyncio.WriteTransport) -> None:
        self._parser.reset()
        self._out, self._out_bytes = [], 0
        if self._is_cut:
            transport.abort()
            return
        self._transport = transport
        self._refusal = ""
        info: dict[str, Any] = self._link.server_info
        self.max_payload_bytes = int(info.get("max_payload", 0))
        self.server_version = str(info.get("version", ""))
        for sid in self._passing:
            del self._subscriptions[sid], self._handlers[b"%d" % sid]
        self._passing.clear()
        for sid, subject in self._subscriptions.items():
            self._send_line(f"SUB {subject} {sid}\r\n")
        self._write_now()

    def link_down(self, reason: str) -> None:
        if self._transport is None:
            return
        if not self._closing:
            _log.warning("bus.disconnected reason=%s", reason)
        self._down_since = time.monotonic()
        self._transport = None
        self._refusal = reason
        self._out, self._out_bytes = [], 0
        self._replies.fail_all(reason)
        for seen in self._flushes:
            if not seen.done():
                seen.set_exception(Unknown(reason))
        self.writable(True)

    def received(self, data: bytes) -> bytes:
        return self._parser.feed(data)

    def writable(self, yes: bool) -> None:
        if not yes and self._room is None:
            self._room = self._loop.create_future()
        elif yes and self._room is not None:
            self._room.set_result(None)
            self._room = None
            if self._transport is not None:
                self._refusal = ""


def _too_large(subject: str, data: int, headers: int, limit: int) -> InvalidPayload:
    return InvalidPayload(
        f"the message for {subject!r}",
        f"its {data} bytes of data and {headers} bytes of headers are more than the {limit} bytes "
        f"that the server takes (max_payload)",
        "Store the value elsewhere and pass a reference to it, or raise max_payload in the "
        "server's configuration.",
    )
