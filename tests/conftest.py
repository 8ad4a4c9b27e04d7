"""Fixtures: a real nats-server per test process, and a namespace of its own for each test.

Nothing here is faked. The server listens on a free port, stores in a temporary directory and is
ended by its process id.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from tests import looking

from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

looking.choose()  # Before any test module makes settings of its own.


@pytest.fixture(scope="session")
def shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NatsServer]:
    """The server of this test process; with xdist each worker process has its own."""
    running = NatsServer.start(tmp_path_factory.mktemp("nats"))
    yield running
    running.kill()  # With the streams of hundreds of tests, an end in good order takes seconds.


@pytest.fixture
def server(shared_server: NatsServer) -> NatsServer:
    """The shared server: ``url``, ``kill()``, ``restart()``. It runs at the start of each test."""
    if not shared_server.is_running:
        shared_server.restart()
    return shared_server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[NatsServer]:
    """A server for one test alone, for those that stop it for long or need it empty."""
    running = NatsServer.start(tmp_path / "nats")
    yield running
    running.kill()


@pytest.fixture
def namespace() -> str:
    """A namespace no other test uses."""
    return f"t{secrets.token_hex(5)}"


@pytest.fixture
def settings(server: NatsServer, namespace: str) -> Settings:
    """How to reach the server, with this test's namespace."""
    return Settings(url=server.url, namespace=namespace)


Eventually = Callable[..., Awaitable[None]]


@pytest.fixture
def eventually() -> Eventually:
    """``await eventually(condition, within_s=5)``: wait for a condition, with a bound."""

    async def wait_until(condition: Callable[[], object], *, within_s: float = 5.0) -> None:
        deadline = time.monotonic() + within_s
        while not condition():
            assert time.monotonic() < deadline, f"did not come true within {within_s} s"
            await asyncio.sleep(0.005)

    return wait_until


@pytest.fixture(scope="session", autouse=True)
def _interruptible() -> None:
    """Let Ctrl-C reach the processes under test also when the suite runs in the background.

    A shell starts background jobs with SIGINT ignored, and their children inherit that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
