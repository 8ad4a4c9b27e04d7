"""One child process that a test kills, stops, continues and waits for, by its own id."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_POLL_S = 0.005


async def wait_until(what: str, is_true: Callable[[], bool], timeout_s: float = 15.0) -> None:
    """Wait for a condition; fail with its name when the bound is over."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(_POLL_S)


class Process:
    """An engine or a worker."""

    def __init__(self, role: str, name: str, env: Mapping[str, str], log: Path) -> None:
        self.role = role
        self.name = name
        self.log = log
        with log.open("ab") as output:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", "tests.crash.member", role],
                cwd=ROOT,
                env={**os.environ, **env},
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._popen.pid

    @property
    def is_running(self) -> bool:
        return self._popen.poll() is None

    @property
    def is_stopped(self) -> bool:
        """True while the process is stopped by SIGSTOP."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[0] == "T"

    def kill(self) -> None:
        """End it as a crash would, also while it is stopped."""
        self._send(signal.SIGKILL)
        self._popen.wait()

    def terminate(self) -> None:
        """Ask it to drain and end."""
        self._send(signal.SIGTERM)

    def stop(self) -> None:
        """Hold it in the middle of whatever it does."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped process go on."""
        self._send(signal.SIGCONT)

    def close(self) -> None:
        """End it and free what it holds here."""
        self.kill()
        assert self._popen.stdin is not None
        self._popen.stdin.close()

    async def died(self, timeout_s: float = 15.0) -> None:
        """Wait until it has died, at a failpoint or otherwise."""
        await wait_until(f"{self.name} dies", lambda: not self.is_running, timeout_s)

    async def stopped(self, timeout_s: float = 15.0) -> None:
        """Wait until it has stopped itself at a failpoint."""
        await wait_until(f"{self.name} stops", lambda: self.is_stopped, timeout_s)

    async def said(self, text: str, timeout_s: float = 15.0) -> None:
        """Wait until its log holds a text."""
        await wait_until(
            f"{self.name} says {text!r}", lambda: text in self.log.read_text(), timeout_s
        )

    def _send(self, number: signal.Signals) -> None:
        if self.is_running:
            self._popen.send_signal(number)
