"""The processes under measurement: one server, one engine, one worker; their CPU and memory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType, TracebackType
from typing import Literal, Self

from treadle.sdk.server import NatsServer

_TICKS = os.sysconf("SC_CLK_TCK")
_START_S = 60.0
_NO_ENV: Mapping[str, str] = MappingProxyType({})
Sync = Literal["2m", "always"]


def cpu_s(pid: int) -> float:
    """Return the CPU seconds a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS


def memory_mb(pid: int) -> float:
    """Return the memory of a process in MB, shared pages divided among their users (PSS)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no Pss for process {pid}")


class Processes:
    """A server, an engine and a worker of their own, ended at the end."""

    def __init__(self, sync: Sync) -> None:
        self._sync = sync
        self._store = tempfile.TemporaryDirectory(prefix="treadle-bench-")
        self._children: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> Self:
        self.server = NatsServer.start(self._store.name, sync=self._sync)
        self.url = self.server.url
        self.spawn("engine", "engine")
        self.spawn("worker", "worker", str(Path(__file__).with_name("app.py")))
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for name in reversed(list(self._children)):
            self.end(name)
        self.server.stop()
        self._store.cleanup()

    def end(self, name: str) -> None:
        """End a process, if it was started."""
        child = self._children.pop(name, None)
        if child is None:
            return
        child.terminate()
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def spawn(
        self, name: str, role: str, *arguments: str, env: Mapping[str, str] = _NO_ENV
    ) -> None:
        """Start ``treadle <role> <arguments>`` and wait until it says that it is ready."""
        log = Path(self._store.name) / f"{name}.log"
        with log.open("wb") as out:
            self._children[name] = subprocess.Popen(
                [sys.executable, "-m", "treadle.cli", role, *arguments],
                env={**os.environ, "TREADLE_NATS_URL": self.url, **env},
                stdout=out,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + _START_S
        while f"{role}.ready" not in log.read_text(errors="replace"):
            if time.monotonic() > deadline or self._children[name].poll() is not None:
                raise RuntimeError(f"the {name} did not start:\n{log.read_text()}")
            time.sleep(0.05)

    def pids(self) -> dict[str, int]:
        """Return the process ids by role."""
        return {
            "server": self.server.pid,
            **{name: child.pid for name, child in self._children.items()},
        }

    def cpu(self) -> dict[str, float]:
        """Return the CPU seconds used so far, by role."""
        return {name: cpu_s(pid) for name, pid in self.pids().items()}

    def memory(self) -> dict[str, float]:
        """Return the memory in MB, by role."""
        return {name: round(memory_mb(pid), 1) for name, pid in self.pids().items()}
