"""The embedded server: start, stop, crash, and what stands in its way.

Method: real processes, ended by their process id; nothing survives its parent.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnavailable
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

Eventually = Callable[..., Awaitable[None]]


def lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # A zombie has ended; its parent has only not looked yet.
    return b") Z " not in Path(f"/proc/{pid}/stat").read_bytes()


def test_what_is_stored_survives_a_kill_and_a_stop_on_the_same_port(tmp_path: Path) -> None:
    server = NatsServer.start(tmp_path)
    url, pids = server.url, {server.pid}

    async def store() -> int:
        async with await Connection.open(Settings(url=url), name="test") as connection:
            js = JetStream(connection)
            await js.ensure_stream({"name": "A", "subjects": ["a"]})
            return await js.store("a", b"x")

    try:
        assert asyncio.run(store()) == 1
        server.kill()
        assert not server.is_running
        server.restart()
        assert asyncio.run(store()) == 2
        pids.add(server.pid)
        server.restart()
        assert asyncio.run(store()) == 3
        assert server.url == url
        assert server.pid not in pids
    finally:
        server.stop()
    server.stop()
    assert not server.is_running
    assert not list(tmp_path.glob("*.ports"))


def test_it_listens_on_this_machine_only_and_shows_its_monitor_if_asked(tmp_path: Path) -> None:
    server = NatsServer.start(tmp_path, http=True, sync="always")
    try:
        assert server.url.startswith("nats://127.0.0.1:")
        with urllib.request.urlopen(f"{server.http_url}/varz", timeout=5) as answer:
            assert b'"server_id"' in answer.read()
        log = (tmp_path / "nats-server.log").read_text()
        assert f"127.0.0.1:{server.port}" in log
        assert "0.0.0.0" not in log.replace("127.0.0.1", "")
    finally:
        server.stop()


def test_a_port_in_use_is_named(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ServerUnavailable, match=f"port {port} .* in use") as caught:
            NatsServer.start(tmp_path, port=port)
    assert "choose another port" in str(caught.value)


def test_two_servers_never_share_a_store(tmp_path: Path) -> None:
    server = NatsServer.start(tmp_path)
    try:
        with pytest.raises(ServerUnavailable, match="in use by another server"):
            NatsServer.start(tmp_path)
        assert server.is_running
    finally:
        server.kill()
    NatsServer.start(tmp_path).stop()


def test_a_server_that_cannot_start_shows_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho the disk is on fire\nexit 3\n")
    broken.chmod(0o755)
    monkeypatch.setenv("TREADLE_NATS_SERVER", str(broken))
    with pytest.raises(ServerUnavailable, match="the disk is on fire") as caught:
        NatsServer.start(tmp_path / "store")
    assert "status 3" in str(caught.value)


def test_a_server_that_does_not_stop_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.sdk.server.STOP_TIMEOUT_S", 0.2)
    server = NatsServer.start(tmp_path)
    os.kill(server.pid, signal.SIGSTOP)
    server.stop()
    assert not server.is_running


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="asks the Linux kernel")
@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGTERM])
def test_it_dies_with_its_parent(tmp_path: Path, with_signal: signal.Signals) -> None:
    program = (
        "import sys, time\n"
        "from treadle.sdk.server import NatsServer\n"
        "server = NatsServer.start(sys.argv[1])\n"
        "print(server.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        assert lives(pid)
        parent.send_signal(with_signal)
        parent.wait(10)
    deadline = time.monotonic() + 10
    while lives(pid):
        assert time.monotonic() < deadline, "the server outlived its parent"
        time.sleep(0.01)
