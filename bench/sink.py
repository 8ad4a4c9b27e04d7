"""A collector that takes everything and keeps nothing: ``python -m bench.sink``.

It prints its address, and at the end of its input how many requests and bytes it took.
"""

from __future__ import annotations

import asyncio
import sys

_ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: application/x-protobuf\r\nContent-Length: 0\r\n\r\n"


class Sink(asyncio.Protocol):
    """One connection of an exporter."""

    requests = 0
    size_bytes = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._buffer = b""

    def data_received(self, data: bytes) -> None:
        """Answer each request once all of it is there."""
        self._buffer += data
        while b"\r\n\r\n" in self._buffer:
            head, _, rest = self._buffer.partition(b"\r\n\r\n")
            fields = dict(
                line.lower().split(b": ", 1) for line in head.split(b"\r\n")[1:] if b": " in line
            )
            length = int(fields.get(b"content-length", b"0"))
            if len(rest) < length:
                return
            self._buffer = rest[length:]
            Sink.requests += 1
            Sink.size_bytes += length
            self._transport.write(_ANSWER)


async def main() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Sink, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    sys.stdout.write(f"http://127.0.0.1:{port}/v1/traces\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.read)
    sys.stdout.write(f"{Sink.requests} {Sink.size_bytes}\n")
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
