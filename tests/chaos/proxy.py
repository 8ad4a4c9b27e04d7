"""A TCP proxy before a NATS server that loses acknowledgements of writes that succeeded.

It reads the server's frames and drops a share of those that say where a message was stored; the
rest passes as it is. Its client has to find out by itself whether its write was stored.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine
from typing import Any

_ACK = b'{"stream":"'
_SEQUENCE = b'"seq":'


class AckLosingProxy:
    """Listens on a port of 127.0.0.1 and connects each client to the server's port."""

    def __init__(self, server_port: int, *, share: float, rng: random.Random) -> None:
        self.port = 0
        self.lost = 0
        """Acknowledgements dropped so far."""
        self.share = share
        self._server_port = server_port
        self._rng = rng
        self._server: asyncio.Server | None = None
        self._pumps: set[asyncio.Task[None]] = set()

    async def open(self) -> str:
        """Listen; return the URL."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return f"nats://127.0.0.1:{self.port}"

    async def close(self) -> None:
        """Stop, and cut what is connected."""
        assert self._server is not None
        self._server.close()
        for pump in self._pumps:
            pump.cancel()
        await asyncio.gather(*self._pumps, return_exceptions=True)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            upstream = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.close()
            return
        self._pump(self._up(reader, upstream[1]), upstream[1])
        self._pump(self._down(upstream[0], writer), writer)

    def _pump(self, work: Coroutine[Any, Any, None], to: asyncio.StreamWriter) -> None:
        async def pump() -> None:
            try:
                await work
            except (OSError, asyncio.IncompleteReadError):
                pass  # One side went away: the other learns it.
            finally:
                to.close()

        task = asyncio.create_task(pump())
        self._pumps.add(task)
        task.add_done_callback(self._pumps.discard)

    async def _up(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65_536):
            writer.write(data)
            await writer.drain()

    async def _down(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while line := await reader.readuntil(b"\r\n"):
            body = b""
            if line.startswith((b"MSG ", b"HMSG ")):
                body = await reader.readexactly(int(line.split()[-1]) + 2)
                if self._is_lost(body):
                    self.lost += 1
                    continue
            writer.write(line + body)
            await writer.drain()

    def _is_lost(self, body: bytes) -> bool:
        is_ack = body.startswith(_ACK) and _SEQUENCE in body and b'"error"' not in body
        return is_ack and self._rng.random() < self.share
