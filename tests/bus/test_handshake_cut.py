"""A server that dies while a client shakes hands with it, played by a relay before a real one."""

from __future__ import annotations

import asyncio
import gc
from urllib.parse import urlparse

import pytest
from tests.conftest import Eventually

from treadle.sdk.bus.connection import Connection
from treadle.sdk.settings import Settings


@pytest.mark.slow
def test_a_handshake_that_is_cut_leaves_no_socket_open(
    settings: Settings, eventually: Eventually
) -> None:
    async def story() -> None:
        target = urlparse(settings.url)
        links: list[asyncio.StreamWriter] = []
        pumps: set[asyncio.Task[None]] = set()
        cuts = 0

        async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            nonlocal cuts
            links.append(writer)
            far_reader, far_writer = await asyncio.open_connection(target.hostname, target.port)
            links.append(far_writer)
            if 2 < len(links) <= 8:
                cuts += 1
                writer.close()  # As of a process that is killed: an end of file, no reset.
                far_writer.close()
                return
            for source, sink in ((reader, far_writer), (far_reader, writer)):
                pump = asyncio.create_task(_pump(source, sink))
                pumps.add(pump)
                pump.add_done_callback(pumps.discard)

        server = await asyncio.start_server(relay, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        through = Settings(url=f"nats://127.0.0.1:{port}", namespace=settings.namespace)
        connection = await Connection.open(through, name="cut")
        for link in list(links):
            link.transport.abort()
        await eventually(lambda: cuts == 3 and connection.is_connected, within_s=15)
        await connection.close()
        for pump in list(pumps):
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        for link in links:
            link.close()
        server.close()
        await server.wait_closed()

    asyncio.run(story())
    gc.collect()  # What was left open says so now, and a warning is an error.


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(65536):
            sink.write(data)
    except OSError:
        pass
    finally:
        sink.close()
