"""``treadle dev`` as its user meets it: the README's own lines, in real processes.

The story saves, breaks and mends the file, kills the worker, and asks what is left at the end.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.cli.conftest import environment

from treadle.sdk.presence import is_process_alive

README = Path(__file__).parents[2] / "README.md"
WAIT_S = 30.0


def first_example() -> str:
    """Return the first Python block of the README."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    assert found is not None
    return found.group(1)


class Dev:
    """A running ``treadle dev app.py`` in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.app = directory / "app.py"
        self.app.write_text(first_example())
        self.log = directory / "dev.log"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "treadle.cli", "dev", "app.py", "--port", str(self.port)],
                cwd=directory,
                env=environment(None),
                stdout=out,
                stderr=subprocess.STDOUT,
            )

    def wait(self, what: str, is_it: Callable[[], object]) -> None:
        """Wait for a condition; fail with the log if it does not come."""
        deadline = time.monotonic() + WAIT_S
        while not is_it():
            assert time.monotonic() < deadline, f"{what} did not come:\n{self.text}"
            assert self.process.poll() is None, f"dev ended:\n{self.text}"
            time.sleep(0.05)

    @property
    def text(self) -> str:
        return self.log.read_text(errors="replace")

    def ready(self) -> int:
        """How often a worker has become ready."""
        return self.text.count("worker.ready")

    def worker(self) -> int:
        """The pid of the newest worker."""
        return int(re.findall(r"name=\S*?-(\d+) ", self.text)[-1])

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run another ``treadle`` in the same directory."""
        return subprocess.run(
            [sys.executable, "-m", "treadle.cli", *arguments],
            cwd=self.directory,
            env=environment(None),
            capture_output=True,
            text=True,
            timeout=WAIT_S,
            check=False,
        )


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    started = Dev(tmp_path)
    yield started
    if started.process.poll() is None:
        started.process.terminate()
        started.process.wait(WAIT_S)


def test_the_lines_of_the_readme_survive_a_killed_worker_a_syntax_error_and_a_reload(
    dev: Dev,
) -> None:
    dev.wait("the worker", lambda: dev.ready() == 1)
    started = dev.run("run", "start", "countdown", "--input", "3", "--id", "r1")
    assert started.stdout == "r1\n"
    dev.wait("an iteration", lambda: "iteration 1, attempt 1" in dev.text)
    os.kill(dev.worker(), signal.SIGKILL)
    dev.wait("another worker", lambda: dev.ready() == 2)
    assert json.loads(dev.run("run", "result", "r1").stdout) == "lift-off"
    assert "attempt 2" in dev.text

    dev.app.write_text(first_example() + "\ndef (\n")
    dev.wait("the mistake", lambda: "invalid syntax" in dev.text)
    dev.app.write_text(first_example().replace("lift-off", "landed"))
    dev.wait("the mended worker", lambda: dev.ready() == 3)
    again = dev.run("run", "start", "countdown", "--input", "0", "--wait")
    assert json.loads(again.stdout) == "landed"

    children = [*map(int, re.findall(r"name=\S*?-(\d+) ", dev.text)), dev.process.pid]
    dev.process.send_signal(signal.SIGINT)
    assert dev.process.wait(WAIT_S) in (0, 130)
    assert not any(map(is_process_alive, children))
    with socket.socket() as probe:
        assert probe.connect_ex(("127.0.0.1", dev.port)) != 0  # Its server is gone too.


def test_a_port_in_use_is_a_clear_error(dev: Dev, tmp_path: Path) -> None:
    dev.wait("the server", lambda: "worker.ready" in dev.text)
    other = tmp_path / "other"
    other.mkdir()
    (other / "app.py").write_text(first_example())
    failed = subprocess.run(
        [sys.executable, "-m", "treadle.cli", "dev", "app.py", "--port", str(dev.port)],
        cwd=other,
        env=environment(None),
        capture_output=True,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert failed.returncode == 4
    assert f"port {dev.port}" in failed.stderr and "in use" in failed.stderr
