"""What docker-compose.yml describes works: three servers from deploy/nats/cluster.conf, two
engines, two workers. Method: real processes on this machine; only addresses are overridden."""

from __future__ import annotations

import json
import os
import random
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from treadle.sdk.server import find_nats_server

pytestmark = pytest.mark.slow

SERVERS = ("nats-1", "nats-2", "nats-3")
ACCOUNT = {"TREADLE_NATS_USER": "treadle", "TREADLE_NATS_PASSWORD": "secret"}
READY_WITHIN_S = 45.0
POLL_S = 0.1


class Cluster:
    """Three servers; their processes, client and monitoring ports."""

    def __init__(self, config: str, directory: Path, stack: ExitStack) -> None:
        ports = _free_ports(9)
        self.clients, routes, self.monitors = ports[:3], ports[3:6], ports[6:]
        self.processes: list[subprocess.Popen[bytes]] = []
        self._stack = stack
        self._directory = directory
        self._environment = {**os.environ, **ACCOUNT, "TREADLE_NATS_URL": self.url}
        peers = ",".join(f"nats://127.0.0.1:{port}" for port in routes)
        for index, name in enumerate(SERVERS):
            path = directory / f"{name}.conf"
            path.write_text(config.replace('"/data"', f'"{directory / name}"'))
            command = [find_nats_server(), "-c", str(path), "-a", "127.0.0.1", "--routes", peers]
            command += ["-p", str(self.clients[index]), "-m", str(self.monitors[index])]
            command += ["--cluster", f"nats://127.0.0.1:{routes[index]}"]
            self.processes.append(self._start(name, command, NATS_SERVER_NAME=name))

    @property
    def url(self) -> str:
        return ",".join(f"nats://127.0.0.1:{port}" for port in self.clients)

    def _start(self, name: str, command: list[str], **more: str) -> subprocess.Popen[bytes]:
        log = self._stack.enter_context((self._directory / f"{name}.log").open("wb"))
        environment = {**self._environment, **more}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def start_treadle(self, name: str, *arguments: str) -> None:
        """Start ``treadle …`` in the background, with the cluster's account."""
        self._start(name, [sys.executable, "-m", "treadle.cli", *arguments])

    def treadle(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``treadle …`` to its end."""
        command = [sys.executable, "-m", "treadle.cli", *arguments]
        environment = self._environment
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)

    def get(self, index: int, path: str) -> dict[str, Any]:
        """Return a monitoring page; nothing while the server does not answer it."""
        try:
            url = f"http://127.0.0.1:{self.monitors[index]}{path}"
            with urllib.request.urlopen(url, timeout=2) as answer:
                return json.loads(answer.read())
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return {}


def _free_ports(count: int) -> list[int]:
    """Distinct ports, all taken in one go, below those that outgoing connections are given."""
    found: list[int] = []
    for port in random.sample(range(20_000, 32_000), 50 * count):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports")


def _wait(what: str, condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + READY_WITHIN_S
    while not condition():
        assert time.monotonic() < deadline, f"{what}: not within {READY_WITHIN_S} s"
        time.sleep(POLL_S)


@pytest.fixture
def cluster(root: Path, tmp_path: Path) -> Iterator[Cluster]:
    config = (root / "deploy" / "nats" / "cluster.conf").read_text("utf-8")
    assert '"/data"' in config
    with ExitStack() as stack:
        cluster = Cluster(config, tmp_path, stack)
        _wait(
            "three healthy servers",
            lambda: all(cluster.get(index, "/healthz").get("status") == "ok" for index in range(3)),
        )
        yield cluster


@pytest.mark.timeout(180)
def test_the_described_cluster_runs_a_workflow_and_survives_the_death_of_a_server(
    cluster: Cluster, root: Path
) -> None:
    state = cluster.get(0, "/jsz")
    assert (state["meta_cluster"]["cluster_size"], state["config"]["sync_always"]) == (3, True)

    for number in (1, 2):
        cluster.start_treadle(f"engine-{number}", "engine", "--replicas", "3")
    _wait("a healthy installation", lambda: cluster.treadle("doctor", "--json").returncode == 0)
    for number in (1, 2):
        cluster.start_treadle(f"worker-{number}", "worker", str(root / "examples" / "hello.py"))
    _wait(
        "a registered workflow",
        lambda: cluster.treadle("workflow", "show", "hello").returncode == 0,
    )

    start = ("run", "start", "hello", "--input", '"Ada"', "--watch", "--json")
    first = cluster.treadle(*start)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "Hello, Ada!" in first.stdout

    leader = cluster.get(0, "/jsz")["meta_cluster"]["leader"]
    victim = cluster.processes[SERVERS.index(leader)]
    victim.kill()
    victim.wait()
    second = cluster.treadle(*start)
    assert second.returncode == 0, second.stdout + second.stderr
    assert "Hello, Ada!" in second.stdout
