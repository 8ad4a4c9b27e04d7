"""What the page about production says of commands, settings and alerts is there, and works.

Method: its names against the code and the rules; its configuration, with other addresses, as a real
server with TLS, an engine and a worker as processes, stopped by signals and begun again on a copy.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml

from treadle.engine.engine import DRAIN_S
from treadle.sdk.bus.handshake import SERVER_VERSION_MIN
from treadle.sdk.server import find_nats_server
from treadle.sdk.settings import Settings
from treadle.worker.worker import CONCURRENCY, DRAIN_TIMEOUT_S

APP = """
from treadle.sdk import Workflow
from treadle.worker import TaskContext, Worker

workflow = Workflow("greet")
workflow.task("hello")
worker = Worker()


@worker.handler("hello")
async def hello(ctx: TaskContext[str]) -> str:
    return f"hello {ctx.input}"
"""
WITHIN_S = 30.0


@pytest.fixture(scope="module")
def page(request: pytest.FixtureRequest) -> str:
    return (request.config.rootpath / "docs" / "production.md").read_text(encoding="utf-8")


def test_the_settings_of_the_page_are_all_there_are(page: str) -> None:
    read = set(Settings().to_env()) - {"TREADLE_MESSAGE_IDS"}
    assert read == set(re.findall(r"`(TREADLE_N[A-Z_]+)`", page))


def test_the_alerts_of_the_page_are_all_there_are(root: Path, page: str) -> None:
    rules = yaml.safe_load((root / "deploy/prometheus/alerts.yml").read_text("utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"]}
    assert alerts == set(re.findall(r"`(Treadle[A-Za-z]+)`", page))


def test_the_numbers_of_the_page_are_those_of_the_code(page: str) -> None:
    assert f"Worker(concurrency={CONCURRENCY})" in page
    assert f"Worker(drain_timeout_s={DRAIN_TIMEOUT_S:g})" in page
    assert f"up to {DRAIN_S:g} s of each kind" in page
    assert f"JetStream, {'.'.join(map(str, SERVER_VERSION_MIN))} or newer" in page


class Place:
    """A directory with certificates, a configured server, and commands that reach it."""

    def __init__(self, at: Path, page: str, stack: ExitStack) -> None:
        self.at = at
        self._stack = stack
        with socket.socket() as one, socket.socket() as other:
            one.bind(("127.0.0.1", 0))
            other.bind(("127.0.0.1", 0))
            port, monitor = one.getsockname()[1], other.getsockname()[1]
        self.monitor = f"http://127.0.0.1:{monitor}"
        self.env = {
            **{name: value for name, value in os.environ.items() if "TREADLE_N" not in name},
            "TREADLE_NATS_URL": f"tls://127.0.0.1:{port}",
            "TREADLE_NATS_USER": "treadle",
            "TREADLE_NATS_PASSWORD": "pw",
            "TREADLE_NATS_CA": f"{at}/server.pem",
        }
        (block,) = re.findall(r"^```text\n(# nats.conf.*?)^```$", page, re.MULTILINE | re.DOTALL)
        for there, here in (
            ("0.0.0.0:4222", f"127.0.0.1:{port}"),
            ("127.0.0.1:8222", f"127.0.0.1:{monitor}"),
            ("/var/lib/nats", f"{at}/store"),
            ("/etc/nats", str(at)),
        ):
            assert there in block
            block = block.replace(there, here)
        (at / "nats.conf").write_text(block)
        (at / "app.py").write_text(APP)
        new = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2"
        files = f"-keyout {at}/server.key -out {at}/server.pem"
        named = "-subj /CN=127.0.0.1 -addext subjectAltName=IP:127.0.0.1"
        subprocess.run(f"{new} {files} {named}".split(), check=True, capture_output=True)

    def start(self, *command: str) -> subprocess.Popen[bytes]:
        with (self.at / "log").open("ab") as log:
            process = subprocess.Popen(command, cwd=self.at, env=self.env, stdout=log, stderr=log)
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        return process

    def server(self) -> subprocess.Popen[bytes]:
        return self.start(find_nats_server(), "--config", "nats.conf")

    def treadle(self, *arguments: str) -> tuple[str, ...]:
        return (sys.executable, "-m", "treadle.cli", *arguments)

    def done(self, *arguments: str) -> str:
        """Run a command until it comes to an end without an error; return what it prints."""
        deadline = time.monotonic() + WITHIN_S
        while True:
            run = subprocess.run(
                self.treadle(*arguments), cwd=self.at, env=self.env, capture_output=True, text=True
            )
            if run.returncode == 0:
                return run.stdout
            log = (self.at / "log").read_text()
            assert time.monotonic() < deadline, run.stdout + run.stderr + log


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(WITHIN_S)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_the_configuration_of_the_page_runs_and_goes_on_from_a_copy(
    tmp_path: Path, page: str
) -> None:
    with ExitStack() as stack:
        place = Place(tmp_path, page, stack)
        check = subprocess.run(
            [find_nats_server(), "--config", "nats.conf", "-t"], cwd=tmp_path, env=place.env
        )
        assert check.returncode == 0
        server = place.server()
        engine = place.start(*place.treadle("engine"))
        worker = place.start(*place.treadle("worker", "app.py"))
        greet = ("run", "start", "greet", "--input", '"Ada"', "--id", "one", "--wait")
        assert json.loads(place.done(*greet)) == "hello Ada"
        doctor = place.done("doctor", "--monitor", place.monitor)
        assert "always: an acknowledged write is on the disk" in doctor
        assert stop(worker) == 0
        place.done("run", "start", "greet", "--input", '"Bob"', "--id", "two")
        assert stop(engine) == 0
        stop(server)

        shutil.copytree(tmp_path / "store", tmp_path / "copy")
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "copy").rename(tmp_path / "store")
        place.server()
        place.start(*place.treadle("engine"))
        place.start(*place.treadle("worker", "app.py"))
        assert json.loads(place.done("run", "result", "two")) == "hello Bob"
        assert json.loads(place.done("run", "result", "one")) == "hello Ada"
