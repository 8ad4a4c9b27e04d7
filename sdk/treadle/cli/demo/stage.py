"""The processes of the demo: server, engine, worker and, without a key, the scripted model.

Each is a process of its own, so that killing one harms no other. All are ended by their ids
when the stage is left, also on Ctrl-C.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import TracebackType
from typing import IO

from treadle.cli import lineage
from treadle.sdk.errors import TreadleError
from treadle.sdk.server import NatsServer

MODEL = "TREADLE_DEMO_MODEL"
"""Variable that names the model."""
_STOP_TIMEOUT_S = 3


class Stage:
    """Starts the processes and ends them."""

    def __init__(self, directory: Path, example: Path, journal: Path) -> None:
        self._directory = directory
        self._example = example
        self._log = (directory / "processes.log").open("wb")
        self._started: list[subprocess.Popen[bytes]] = []
        self._server: NatsServer | None = None
        self._worker: subprocess.Popen[bytes] | None = None
        # Where to connect to is the demo's business, whatever the user has set.
        kept = {k: v for k, v in os.environ.items() if not k.startswith("TREADLE_") or k == MODEL}
        self._environment = kept | {
            "CODE_REPAIR_JOURNAL": str(journal),
            # They end with this process, also when it is killed.
            lineage.PID: str(os.getpid()),
            # What a killed worker leaves behind goes with the demo's own directory.
            "TMPDIR": str(directory),
            "NO_PROXY": "127.0.0.1",
            "no_proxy": "127.0.0.1",
        }

    def __enter__(self) -> Stage:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for process in reversed(self._started):
            if kind is None:
                process.terminate()
            else:  # Nobody waits for a drain.
                _kill_group(process)
        for process in reversed(self._started):
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _kill_group(process)
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()
        if self._server is not None:
            self._server.stop()
        self._log.close()

    @property
    def url(self) -> str:
        """Of the server."""
        assert self._server is not None
        return self._server.url

    @property
    def worker_pid(self) -> int:
        """Of the worker that was started last."""
        return self._worker.pid if self._worker else 0

    def start_server(self) -> None:
        """Start nats-server on a free port, with an empty store."""
        self._server = NatsServer.start(self._directory / "store", sync="always")
        self._environment["TREADLE_NATS_URL"] = self._server.url

    def start_model(self) -> None:
        """Start the scripted model and make it the one that workers ask."""
        process = self._start(str(self._example / "scripted_model.py"), piped=True)
        for name in list(self._environment):
            if name.startswith("ANTHROPIC_"):
                del self._environment[name]
        assert process.stdout is not None
        for _ in range(2):
            name, _, value = process.stdout.readline().decode().strip().partition("=")
            if not value:
                raise TreadleError(
                    f"the scripted model did not start. Its last words: {self.last_words()}"
                )
            self._environment[name] = value

    def start_engine(self) -> None:
        """Start an engine; it sets the namespace up."""
        self._start("-m", "treadle.cli", "engine")

    def start_worker(self) -> int:
        """Start a worker and return its process id."""
        self._worker = self._start("-m", "treadle.cli", "worker", str(self._example / "app.py"))
        return self._worker.pid

    def kill_worker(self) -> int:
        """Kill the worker, and what it runs, with SIGKILL and return its process id."""
        assert self._worker is not None
        _kill_group(self._worker)
        return self._worker.pid

    def ended(self) -> str:
        """Return which process has ended although it should run, with its last words; or ''."""
        for process in self._started:
            if process.poll() not in (None, -signal.SIGKILL):
                arguments = " ".join(str(part) for part in process.args[1:])  # type: ignore[index]
                return f"{arguments} ended with status {process.returncode}: {self.last_words()}"
        return ""

    def last_words(self) -> str:
        """Return the end of what the processes wrote."""
        text = (self._directory / "processes.log").read_text(errors="replace")
        return "\n".join(text.splitlines()[-15:]) or "(none)"

    def _start(self, *arguments: str, piped: bool = False) -> subprocess.Popen[bytes]:
        output: IO[bytes] | int = subprocess.PIPE if piped else self._log
        process = subprocess.Popen(
            [sys.executable, *arguments],
            cwd=self._directory,
            env=self._environment,
            # Closed when this process ends, however it ends: the scripted model watches it.
            stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
            stdout=output,
            stderr=self._log,
            # Ctrl-C is for the demo, which ends the others in order.
            start_new_session=True,
        )
        self._started.append(process)
        return process


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:  # Its id is its own until it has been waited for.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
