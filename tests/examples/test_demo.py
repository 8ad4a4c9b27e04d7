"""``treadle demo`` as a user runs it: a process, its exit code, and what it leaves behind.

Method: run it with ``--json``, in a directory of its own, and look for its processes afterwards
by a variable in their environment.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
import uuid
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow

PACKAGE = Path(__file__).resolve().parents[2] / "examples" / "code_repair" / "timetable"
TIMEOUT_S = 60


class _Demo:
    """One run of the demo, in its own directory for temporary files."""

    def __init__(
        self, directory: Path, *options: str, terminal: int | None = None, **variables: str
    ) -> None:
        self.mark = f"treadle-demo-test-{uuid.uuid4()}"
        self.directory = directory
        environment = {k: v for k, v in os.environ.items() if not k.startswith("ANTHROPIC_")}
        environment |= {"TMPDIR": str(directory), "TREADLE_TEST_MARK": self.mark}
        environment |= {"SCRIPTED_MODEL_LATENCY_S": "0.05", **variables}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "treadle.cli", "demo", *options],
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL if terminal is None else terminal,
            stdout=subprocess.PIPE if terminal is None else terminal,
            stderr=subprocess.PIPE if terminal is None else terminal,
            start_new_session=terminal is not None,
            preexec_fn=None if terminal is None else _take_terminal,
            text=True,
        )

    def finish(self) -> tuple[int, str, str]:
        try:
            out, err = self.process.communicate(timeout=TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, out, err

    def left_behind(self) -> list[str]:
        """Return the processes that still run and the files that still lie there."""
        found = [str(path) for path in self.directory.iterdir()]
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if self.mark.encode() in (entry / "environ").read_bytes():
                    found.append((entry / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # Gone, or another user's.
        return found


def _take_terminal() -> None:
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _digest(directory: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(directory.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _kill_of(result: dict[str, Any]) -> dict[str, Any]:
    assert len(result["kills"]) == 1
    kill: dict[str, Any] = result["kills"][0]
    return kill


def test_the_demo_survives_kill_minus_nine_and_repairs_the_package(tmp_path: Path) -> None:
    before = _digest(PACKAGE)
    demo = _Demo(tmp_path, "--json")
    code, out, err = demo.finish()
    assert (code, err) == (0, "")
    result = json.loads(out)
    assert result["repaired"] and result["verdict"].startswith("22 passed")
    # Six edits; the third iteration was executed twice and committed once.
    assert (result["iterations"], result["executions"], result["model_calls"]) == (6, 7, 14)
    kill = _kill_of(result)
    assert (kill["iteration"], kill["attempt"], kill["phase"]) == (2, 1, "testing")
    # The dead worker may be given the next attempt too, until the server has seen it die.
    assert kill["resumed_attempt"] in (2, 3)
    assert kill["repeated_model_calls"] == 2
    assert kill["repeated_edit"] and kill["resumed_by"] != kill["worker"]
    assert 0 < kill["time_to_resume_s"] < 15
    assert result["diff"].count("\n+++ b/timetable/") == 3
    assert _digest(PACKAGE) == before
    assert demo.left_behind() == []


def test_without_the_kill_every_iteration_is_executed_once(tmp_path: Path) -> None:
    demo = _Demo(tmp_path, "--no-kill")
    code, out, err = demo.finish()
    assert (code, err) == (0, "")
    assert "6 committed, in order, each once" in out and "6 executions" in out
    assert "no, as asked" in out and "22 passed" in out
    assert demo.left_behind() == []


def test_the_key_k_kills_the_worker_on_a_terminal(tmp_path: Path) -> None:
    controller, terminal = pty.openpty()
    demo = _Demo(tmp_path, "--no-kill", terminal=terminal, TERM="xterm", COLUMNS="120")
    os.close(terminal)
    shown, is_pressed = b"", False
    deadline = time.monotonic() + TIMEOUT_S
    while demo.process.poll() is None:
        assert time.monotonic() < deadline, shown.decode()
        shown += _read(controller)
        if not is_pressed and b"press k" in shown and b"runs pytest" in shown:
            is_pressed = os.write(controller, b"k") == 1
    shown += _read(controller)
    os.close(controller)
    assert demo.process.returncode == 0
    assert b"kill -9" in shown and b"time to resume" in shown and b"22 passed" in shown
    assert demo.left_behind() == []


def _read(controller: int) -> bytes:
    ready, _, _ = select.select([controller], [], [], 0.1)
    try:
        return os.read(controller, 65536) if ready else b""
    except OSError:  # The other end is closed.
        return b""


def test_ctrl_c_ends_every_process(tmp_path: Path) -> None:
    demo = _Demo(tmp_path, SCRIPTED_MODEL_LATENCY_S="0.5")
    assert demo.process.stdout is not None
    for line in demo.process.stdout:
        if line.startswith("iteration 0"):
            break
    demo.process.send_signal(signal.SIGINT)
    code, _, err = demo.finish()
    assert (code, err) == (130, "")
    assert demo.left_behind() == []


def test_a_killed_demo_takes_its_processes_with_it(tmp_path: Path) -> None:
    if not sys.platform.startswith("linux"):
        pytest.skip("only Linux ends the children of a killed process")
    demo = _Demo(tmp_path, SCRIPTED_MODEL_LATENCY_S="0.5")
    assert demo.process.stdout is not None
    for line in demo.process.stdout:
        if line.startswith("run "):
            break
    demo.process.kill()
    demo.finish()
    deadline = time.monotonic() + 15
    while [item for item in demo.left_behind() if not item.startswith(str(tmp_path))]:
        assert time.monotonic() < deadline, demo.left_behind()
        time.sleep(0.05)


def test_a_model_that_refuses_fails_the_demo(tmp_path: Path, model_environment: Any) -> None:
    # A key that the server does not know: every question is answered with status 401.
    variables = {**model_environment, "ANTHROPIC_API_KEY": "wrong"}
    code, out, _ = _Demo(tmp_path, "--json", **variables).finish()
    assert code == 1
    assert "status 401" in json.loads(out)["error"]["message"]
