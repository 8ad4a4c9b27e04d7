"""``treadle dev``, ``treadle engine`` and ``treadle worker`` as processes, end to end.

Each test watches what the command prints; no sleeping, a bound on every wait.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.cli.conftest import environment

from treadle.cli import exits
from treadle.sdk.presence import is_process_alive
from treadle.sdk.settings import Settings

pytestmark = pytest.mark.slow

APP = """
from treadle.sdk import Workflow
from treadle.worker import LoopContext, Worker

workflow = Workflow("count")
workflow.agent_loop("loop", "count", max_iterations=5)
worker = Worker()

@worker.handler("count")
async def count(ctx: LoopContext):
    return ctx.complete("GREETING") if ctx.iteration == 2 else ctx.continue_(None)
"""


class Command:
    """A running command, and the lines it has printed."""

    def __init__(self, *arguments: str, cwd: Path, settings: Settings | None) -> None:
        self.lines: list[str] = []
        self.process = subprocess.Popen(
            [sys.executable, "-m", "treadle.cli", *arguments],
            env=environment(settings),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(iter(self.process.stdout.readline, ""))

    def says(self, text: str, *, times: int = 1, within_s: float = 30) -> str:
        """Wait until it has said this so often; return the last such line."""
        found: list[str] = []

        def look() -> bool:
            found[:] = [line for line in list(self.lines) if text in line]
            return len(found) >= times

        until(look, within_s, lambda: f"{text!r} x{times} not in:\n{''.join(self.lines)}")
        return found[-1]

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal and return the exit code."""
        self.process.send_signal(number)
        code = self.process.wait(30)
        self._reader.join(10)
        return code

    def children(self) -> list[int]:
        path = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]


def until(condition: Callable[[], bool], within_s: float, what: Callable[[], str]) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, what()
        time.sleep(0.01)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


Start = Callable[..., Command]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Start commands in the test's directory; all are ended with the test."""
    started: list[Command] = []

    def start(*arguments: str, settings: Settings | None = None) -> Command:
        started.append(Command(*arguments, cwd=tmp_path, settings=settings))
        return started[-1]

    yield start
    for command in reversed(started):
        if command.process.poll() is None:
            command.end(signal.SIGINT)
        assert command.process.stdout is not None
        command.process.stdout.close()


def result(cwd: Path, greeting: str) -> None:
    """Start a run as another terminal would, and expect its result."""
    done = subprocess.run(
        [sys.executable, "-m", "treadle.cli", "run", "start", "count", "--wait", "--json"],
        env=environment(None),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
    )
    assert done.returncode == exits.OK, done
    told: dict[str, Any] = msgspec.json.decode(done.stdout)
    assert (told["status"], told["result"]) == ("completed", greeting)


@pytest.mark.skipif(sys.platform != "linux", reason="reads the children from /proc")
def test_dev_serves_reloads_survives_a_syntax_error_and_ends_all_it_started(
    start: Start, tmp_path: Path
) -> None:
    app = tmp_path / "app.py"
    app.write_text(APP)
    dev = start("dev", "app.py")
    assert "sync 1s" in dev.says("server  nats://127.0.0.1:")
    dev.says("ready; workflows: count")
    result(tmp_path, "GREETING")

    # A file elsewhere, as an agent's handler may write it, changes nothing.
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace" / "edited.py").write_text("x = 1")
    # Nor does a script beside it that the app does not import, or data.
    (tmp_path / "drive.py").write_text("x = 1")
    (tmp_path / "state.json").write_text("{}")
    app.write_text(APP + "def broken(:\n")
    dev.says("app.py changed")
    dev.says("invalid syntax")
    dev.says("waiting for the next change")
    (tmp_path / "greeting.json").write_text('"read"')
    reads = 'open("greeting.json").read().strip(chr(34))'
    app.write_text(f"GREETING = {reads}\n" + APP.replace('"GREETING"', "GREETING"))
    dev.says("worker.ready", times=2)
    result(tmp_path, "read")
    # What the app read while it was loaded belongs to it.
    (tmp_path / "greeting.json").write_text('"changed"')
    dev.says("greeting.json changed")
    dev.says("worker.ready", times=3)
    result(tmp_path, "changed")
    assert not any(
        name in line for name in ("edited.py", "drive.py", "state.json") for line in dev.lines
    )

    second = start("dev", "app.py")
    assert second.process.wait(30) == exits.USAGE
    assert "already runs" in second.says("error:")

    pids = dev.children()
    assert len(pids) == 3
    assert dev.end(signal.SIGTERM) == exits.OK
    assert not any(is_process_alive(pid) for pid in pids)
    assert not (tmp_path / ".treadle" / "dev.json").exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends children with their parent")
def test_a_killed_worker_is_replaced_and_a_killed_dev_leaves_nothing_behind(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP)
    port = str(free_port())
    dev = start("dev", "app.py", "--port", port, "--sync", "always", "--json")
    ready = msgspec.json.decode(dev.says('"event":"dev.ready"'))
    assert ready["workflows"] == ["count"]
    worker = int(dev.says("worker.ready").partition("name=")[2].split()[0].rpartition("-")[2])
    os.kill(worker, signal.SIGKILL)
    dev.says("ended with signal 9; starting again")
    dev.says("worker.ready", times=2)
    result(tmp_path, "GREETING")
    pids = dev.children()
    assert len(pids) == 3
    dev.end(signal.SIGKILL)
    until(lambda: not any(map(is_process_alive, pids)), 20, lambda: f"alive of {pids}")

    assert ready["url"].endswith(f":{port}")
    again = start("dev", "app.py", "--port", port)
    again.says("ready; workflows: count")
    result(tmp_path, "GREETING")
    (tmp_path / "other").mkdir()
    other = Command(
        "dev", str(tmp_path / "app.py"), "--port", port, cwd=tmp_path / "other", settings=None
    )
    assert other.process.wait(30) == exits.SERVER
    assert f"port {port} of 127.0.0.1 is in use" in other.says("error:")
    assert other.process.stdout is not None
    other.process.stdout.close()
    assert again.end(signal.SIGINT) == exits.OK


FAILING = """
import asyncio
from treadle.sdk import Retry, Workflow
from treadle.worker import TaskContext, Worker

workflow = Workflow("count")
workflow.task("sum", "sum", retry=Retry(max_attempts=2, delay_s=0))
worker = Worker()

@worker.handler("sum")
async def sum_up(ctx: TaskContext):
    if ctx.attempt == 1:
        raise ValueError("off by \\x1b[31mone")
    print("slow now")
    await asyncio.sleep(60)
"""


def test_dev_shows_a_failed_handler_with_its_line_and_says_for_what_it_waits_at_its_end(
    start: Start, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(FAILING)
    dev = start("dev", "app.py", "--port", str(free_port()))
    dev.says("ready; workflows: count")
    below = tmp_path / "below"
    below.mkdir()
    began = Command("run", "start", "count", "--id", "r1", cwd=below, settings=None)
    assert began.process.wait(30) == exits.OK, began.lines
    assert began.process.stdout is not None
    began.process.stdout.close()
    line = next(n for n, text in enumerate(FAILING.splitlines(), 1) if "raise" in text)
    told = dev.says("worker.attempt-failed type=sum run=r1 step=sum attempt=1: ValueError: off by")
    assert f"\\u001b[31mone (at app.py:{line})" in told and "\x1b" not in told
    dev.says("slow now")
    dev.process.send_signal(signal.SIGINT)
    dev.says("for running handlers to end (Ctrl-C again to give them up)")
    dev.says("worker.waiting for 1 handler to end")
    dev.process.send_signal(signal.SIGINT)
    dev.says("giving up what still runs")
    assert dev.process.wait(30) == exits.OK


def test_engine_and_worker_stop_on_sigterm_and_a_worker_may_be_first(
    start: Start, settings: Settings, tmp_path: Path
) -> None:
    (tmp_path / "app.py").write_text(APP + "workflow.task('extra', 'served-elsewhere')\n")
    worker = start("worker", "app.py", settings=settings)
    worker.says("no handler for it")
    worker.says("waiting for an engine")
    engine = start("engine", "--json", settings=settings)
    engine.says('"msg":"engine.ready')
    worker.says("worker.ready")
    (tmp_path / "old.py").write_text(APP.replace("max_iterations=5", "max_iterations=4"))
    old = start("worker", "old.py", "--no-register", settings=settings)
    old.says("worker.ready")
    shown = start("workflow", "show", "count", settings=settings)
    shown.says("max_iterations: 5")
    assert old.end() == worker.end() == engine.end() == exits.OK
    assert all(msgspec.json.decode(line)["ts"] for line in engine.lines)


def test_a_gateway_may_be_first_stops_on_sigterm_and_says_when_its_port_is_taken(
    start: Start, settings: Settings
) -> None:
    gateway = start("http", "--port", "0", settings=settings)
    gateway.says("http.waiting")
    engine = start("engine", "--json", settings=settings)
    engine.says('"msg":"engine.ready')
    port = gateway.says("listening on ").partition("127.0.0.1:")[2].partition(":")[0]
    second = start("http", "--port", port, settings=settings)
    second.says("Choose another --port")
    assert second.process.wait(30) == exits.USAGE
    assert gateway.end() == engine.end() == exits.OK


def test_a_worker_without_handlers_or_file_is_bad_input(start: Start, tmp_path: Path) -> None:
    (tmp_path / "idle.py").write_text("from treadle.worker import Worker\nworker = Worker()\n")
    idle = start("worker", "idle.py", "--url", "nats://127.0.0.1:9")
    missing = start("worker", "missing.py")
    assert idle.process.wait(30) == missing.process.wait(30) == exits.USAGE
    assert "no handlers" in idle.says("error:")
    assert "missing.py is not a file" in missing.says("error:")
