"""One process that a test kills, stops, continues and waits for, by its own id."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.nursery import Nursery

_POLL_S = 0.005
_WAIT_S = 20.0


async def wait_until(what: str, is_true: Callable[[], bool], timeout_s: float = _WAIT_S) -> None:
    """Wait for a condition; fail with its name when the bound is over."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
        await asyncio.sleep(_POLL_S)


class Process:
    """An engine or a worker."""

    def __init__(
        self,
        nursery: Nursery,
        role: str,
        name: str,
        env: Mapping[str, str],
        log: Path,
        module: str = "tests.crash.member",
    ) -> None:
        self.role = role
        self.name = name
        self.log = log
        log.touch()
        self._forked = nursery.start(module, role, env=env, log=log)
        self.pid = self._forked.pid

    @property
    def is_running(self) -> bool:
        return self._forked.state not in ("", "Z", "X")

    @property
    def is_stopped(self) -> bool:
        """True while the process is stopped by SIGSTOP."""
        return self._forked.state == "T"

    def kill(self) -> None:
        """End it as a crash would, also while it is stopped; return when it is gone."""
        self._send(signal.SIGKILL)
        while self.is_running:
            time.sleep(0.001)

    def terminate(self) -> None:
        """Ask it to drain and end."""
        self._send(signal.SIGTERM)

    def stop(self) -> None:
        """Hold it in the middle of whatever it does."""
        self._send(signal.SIGSTOP)

    def go_on(self) -> None:
        """Let a stopped process go on."""
        self._send(signal.SIGCONT)

    async def died(self) -> None:
        """Wait until it has died, at a failpoint or otherwise."""
        await wait_until(f"{self.name} dies", lambda: not self.is_running)

    async def stopped(self) -> None:
        """Wait until it has stopped itself at a failpoint."""
        await wait_until(f"{self.name} stops", lambda: self.is_stopped)

    async def said(self, text: str) -> None:
        """Wait until its log holds a text."""
        await wait_until(f"{self.name} says {text!r}", lambda: text in self.log.read_text())

    def _send(self, number: signal.Signals) -> None:
        try:
            os.kill(self.pid, number)
        except ProcessLookupError:
            pass
