"""What ``nats_link.py`` relies on inside nats-py; a failure here means: read the new nats-py.

Method: the names it overrides and touches, then a bare link on a real server, to see that they
still do what the names say.
"""

from __future__ import annotations

import asyncio
import inspect
import os
import signal

import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport

from treadle.sdk.bus.nats_link import NatsLink
from treadle.sdk.server import NatsServer

ADVICE = "nats-py has changed: adapt sdk/treadle/sdk/bus/nats_link.py, then this test"


class Owner:
    """Notes what the link tells it, and takes no message frames."""

    def __init__(self) -> None:
        self.transports: list[asyncio.WriteTransport] = []
        self.downs: list[str] = []
        self.lines = b""

    def link_up(self, transport: asyncio.WriteTransport) -> None:
        self.transports.append(transport)

    def link_down(self, reason: str) -> None:
        self.downs.append(reason)

    def received(self, data: bytes) -> bytes:
        self.lines += data
        return data

    def writable(self, yes: bool) -> None:
        pass


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("_process_connect_init", ["self"]),
        ("_process_info", ["self", "info", "initial_connection"]),
        ("_process_op_err", ["self", "e"]),
        ("_process_err", ["self", "err_msg"]),
        ("_send_ping", ["self", "future"]),
    ],
)
def test_the_coroutines_that_are_overridden_or_called_exist(
    name: str, parameters: list[str]
) -> None:
    method = getattr(Client, name, None)
    assert method is not None, f"Client.{name} is gone; {ADVICE}"
    assert inspect.iscoroutinefunction(method), f"Client.{name} is no coroutine; {ADVICE}"
    assert list(inspect.signature(method).parameters) == parameters, f"Client.{name}: {ADVICE}"


def test_the_attributes_that_are_touched_exist() -> None:
    client = Client()
    for name in (
        "_server_info",
        "_pending",
        "_pending_data_size",
        "_transport",
        "_error_cb",
        "_current_server",
    ):
        assert hasattr(client, name), f"Client.{name} is gone; {ADVICE}"
    assert hasattr(TcpTransport(), "_io_writer"), f"TcpTransport._io_writer is gone; {ADVICE}"


def test_the_tap_sees_every_byte_and_nats_py_only_what_is_handed_back(server: NatsServer) -> None:
    async def main() -> None:
        owner = Owner()
        link = NatsLink(owner)
        await link.connect(server.url)
        assert len(owner.transports) == 1, f"no link_up at the handshake; {ADVICE}"
        assert link.server_info["max_payload"] > 0
        await asyncio.wait_for(await link.pong(), 5)
        assert b"PONG\r\n" in owner.lines
        owner.transports[0].write(b"SUB x 1\r\nPUB x 2\r\nhi\r\n")
        await asyncio.wait_for(await link.pong(), 5)
        assert b"MSG x 1 2\r\nhi\r\n" in owner.lines
        link.abort()
        await link.close()

    asyncio.run(main())


def test_each_reconnect_has_a_tap_of_its_own(own_server: NatsServer) -> None:
    async def main() -> None:
        owner, back = Owner(), asyncio.Event()

        async def reconnected() -> None:
            back.set()

        async def error(exc: Exception) -> None:
            pass

        link = NatsLink(owner)
        await link.connect(
            own_server.url, reconnect_time_wait=0, reconnected_cb=reconnected, error_cb=error
        )
        own_server.kill()
        own_server.restart()
        await asyncio.wait_for(back.wait(), 10)
        assert len(owner.transports) == 2, f"no link_up at the reconnect; {ADVICE}"
        assert owner.downs, f"no link_down at the loss; {ADVICE}"
        await asyncio.wait_for(await link.pong(), 5)
        link.abort()
        await link.close()

    asyncio.run(main())


def test_a_server_that_falls_silent_is_left_though_bytes_are_unsent(own_server: NatsServer) -> None:
    async def main() -> None:
        owner, lost = Owner(), asyncio.Event()

        async def disconnected() -> None:
            lost.set()

        async def error(exc: Exception) -> None:
            pass

        link = NatsLink(owner)
        await link.connect(
            own_server.url,
            ping_interval=0.05,  # type: ignore[arg-type]
            max_outstanding_pings=2,
            reconnect_time_wait=0,
            connect_timeout=1,
            disconnected_cb=disconnected,
            error_cb=error,
        )
        os.kill(own_server.pid, signal.SIGSTOP)
        try:
            owner.transports[0].write(b"PUB x 900000\r\n" + bytes(900_000) + b"\r\n")
            owner.transports[0].write(b"PUB x 900000\r\n" + bytes(900_000) + b"\r\n")
            for _ in range(10):
                owner.transports[0].write(b"PUB x 900000\r\n" + bytes(900_000) + b"\r\n")
            # Nats-py waits for the old transport to close before it tells anybody; a transport
            # with unsent bytes does so only because it was aborted.
            await asyncio.wait_for(lost.wait(), 5)
        finally:
            os.kill(own_server.pid, signal.SIGCONT)
        link.abort()
        await link.close()

    asyncio.run(main())
