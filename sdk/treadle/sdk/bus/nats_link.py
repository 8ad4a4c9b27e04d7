"""nats-py, held at arm's length: the one file that touches it, private parts included.

nats-py resolves, connects, does TLS and authentication, answers PING, notices a dead connection
and reconnects. Messages do not pass through it: its regular expressions, and its queue and task
per subscription, cost 20 us a message. So after each handshake a ``_Tap`` is put between the
socket and nats-py's stream reader. The tap's owner takes the message frames out of the bytes and
returns the rest, which nats-py reads as if nothing else had come.

    socket -> _Tap -> LinkOwner.received -> handlers
                 \\-> INFO, PING, PONG, -ERR -> nats-py's reader and parser
    LinkOwner.write -> transport             (nats-py's own PONG and PING go there too)

What is relied on is pinned by ``tests/bus/test_nats_py_contract.py``.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol, cast

from nats import errors
from nats.aio.client import Client

from treadle.sdk.bus.wire import MalformedFrame, Unknown

_log = logging.getLogger("treadle.bus")

WRITE_BUFFER_BYTES_HIGH = 4 * 1024 * 1024
"""Unsent bytes at which producers are asked to wait."""
WRITE_BUFFER_BYTES_LOW = 1024 * 1024
_REPORTED_ONLY = ("permissions violation", "maximum subscriptions exceeded", "invalid subject")
"""Errors after which the server keeps the connection open."""


class LinkOwner(Protocol):
    """What the link tells its owner; all of it synchronous, on the event loop."""

    def link_up(self, transport: asyncio.WriteTransport) -> None:
        """The handshake is done: the transport takes protocol frames."""

    def link_down(self, reason: str) -> None:
        """The transport is gone. May be called twice."""

    def received(self, data: bytes) -> bytes:
        """Take the message frames; return the protocol lines that are none."""
        ...

    def writable(self, yes: bool) -> None:
        """The transport's buffer is full, or has room again."""


class _Tap(asyncio.Protocol):
    def __init__(self, inner: asyncio.Protocol, owner: LinkOwner, transport: Any) -> None:
        self._inner = inner
        self._owner = owner
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            control = self._owner.received(data)
        except MalformedFrame as exc:
            _log.error("bus.malformed-frame starts=%s", exc)
            self._transport.abort()
            return
        if control:
            self._inner.data_received(control)

    def eof_received(self) -> bool | None:
        self._owner.link_down("the server closed the connection")
        return self._inner.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        self._owner.link_down("the connection was lost")
        self._inner.connection_lost(exc)

    def pause_writing(self) -> None:
        self._owner.writable(False)
        self._inner.pause_writing()

    def resume_writing(self) -> None:
        self._owner.writable(True)
        self._inner.resume_writing()


class NatsLink(Client):
    """A nats-py client whose messages go to its owner."""

    def __init__(self, owner: LinkOwner) -> None:
        super().__init__()
        self._owner = owner
        self.requires_tls = False
        """Whether every server must ask for TLS; one with ``tls://`` must in any case."""

    @property
    def server_info(self) -> dict[str, Any]:
        """What the server said about itself in the newest INFO of a handshake."""
        return self._server_info

    async def pong(self) -> asyncio.Future[None]:
        """Send a PING; the future is done when the server has seen all that was written before."""
        # Nats-py sets a result on every future it keeps, so it must never see one that a waiter
        # may cancel: that would end its reading task.
        kept: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        seen: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        kept.add_done_callback(lambda _: None if seen.done() else seen.set_result(None))
        try:
            # Nats-py's annotation leaves the type of the future's result open.
            await self._send_ping(kept)  # pyright: ignore[reportUnknownMemberType]
        except (OSError, RuntimeError) as exc:  # The transport has just been lost.
            raise Unknown(f"the connection was lost: {exc}") from exc
        return seen

    def abort(self) -> None:
        """Drop the transport with what it has not sent: a close that waits for it may hang."""
        self._pending = []
        self._pending_data_size = 0
        transport = self._socket_transport()
        if transport is not None:
            transport.abort()

    def _socket_transport(self) -> asyncio.WriteTransport | None:
        writer = getattr(self._transport, "_io_writer", None)
        return cast(asyncio.WriteTransport, writer.transport) if writer is not None else None

    # ---------------------------------------------------------------- overridden

    async def _process_connect_init(self) -> None:
        try:
            await super()._process_connect_init()
        except (ValueError, AssertionError) as exc:
            self.abort()
            # Only errors of its own kind make nats-py try the next server.
            raise errors.Error(f"nats: handshake failed: {exc!r}") from exc
        except BaseException:
            # Nats-py goes on to the next server and would leave this socket open.
            self.abort()
            raise
        # No await between the server's PONG and here: nobody saw a connection without the tap.
        transport = self._socket_transport()
        if transport is None:
            raise errors.Error("nats: only TCP and TLS connections are supported")
        transport.set_write_buffer_limits(WRITE_BUFFER_BYTES_HIGH, WRITE_BUFFER_BYTES_LOW)
        inner = cast(asyncio.Protocol, transport.get_protocol())
        transport.set_protocol(_Tap(inner, self._owner, transport))
        self._owner.link_up(transport)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        # Nats-py speaks in plain text, password and all, to a server that asks for no TLS.
        server = self._current_server
        is_demanded = self.requires_tls or (server is not None and server.uri.scheme == "tls")
        if initial_connection and is_demanded and not info.get("tls_required"):
            raise errors.Error("nats: the server offers no TLS, and this client demands it")
        await super()._process_info(info, initial_connection)

    async def _process_op_err(self, e: Exception) -> None:
        if self.is_connected:
            self._owner.link_down(str(e) or type(e).__name__)
            self.abort()
        await super()._process_op_err(e)

    async def _process_err(self, err_msg: str) -> None:
        # Nats-py closes for good on any error; the server may be of another opinion tomorrow.
        error = errors.Error(f"nats: {err_msg.strip(chr(39))}")
        if any(text in err_msg for text in _REPORTED_ONLY):
            await self._error_cb(error)
        else:
            await self._process_op_err(error)
