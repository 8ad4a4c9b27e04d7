"""Starts the Python processes of a test in a moment: ``python -m tests.nursery``.

It imports once what they need, and forks: an import that takes seconds is paid once for each test
process. Orders come in as JSON lines, process ids go out. When the nursery ends, on the end of its
input or otherwise, so do all it has started.
"""

from __future__ import annotations

import atexit
import ctypes
import functools
import importlib
import os
import runpy
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

import msgspec

ROOT = Path(__file__).resolve().parents[1]
AGENTS = (
    "anthropic.resources.messages",
    "treadle.worker.agent.models.anthropic",
    "treadle.cli.run",
)
"""What a worker with agents imports."""
ENGINES = ("tests.crash.chain", "treadle.engine", "treadle.worker")
"""What the processes of a crash test import."""
_PR_SET_PDEATHSIG = 1
_POLL_S = 0.005


class Order(msgspec.Struct):
    """A process to start, as ``python -m MODULE ARGUMENTS`` would."""

    module: str
    arguments: tuple[str, ...]
    env: dict[str, str]
    log: str
    exit_code: str
    """Path of the file that holds its exit code, once it has one."""
    preload: tuple[str, ...] = ()
    """Modules that the nursery imports before it forks."""


class Forked:
    """A process that a nursery has started; it has the methods of ``subprocess.Popen``."""

    def __init__(self, pid: int, exit_code: Path) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self._exit_code = exit_code

    @property
    def state(self) -> str:
        """Return the letter of its state, ``T`` for one that is stopped; empty when it is gone."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return ""
        return stat.rpartition(")")[2].split()[0]

    def poll(self) -> int | None:
        """Return the exit code, or None while it runs; below 0 is the signal that ended it."""
        if self.returncode is None and self._exit_code.exists():
            self.returncode = int(self._exit_code.read_text())
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code when it has ended; raise ``subprocess.TimeoutExpired``."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0)
            time.sleep(_POLL_S)
        return code

    def send_signal(self, number: signal.Signals) -> None:
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                pass

    def terminate(self) -> None:
        """Ask it to drain and end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self.send_signal(signal.SIGKILL)


class Nursery:
    """The nursery as a test sees it."""

    def __init__(self, *preload: str) -> None:
        self._preload = preload
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.nursery"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(
        self,
        module: str,
        *arguments: str,
        env: Mapping[str, str],
        log: Path,
        is_alone: bool = False,
    ) -> Forked:
        """Start ``python -m module``; what it says is appended to the log.

        ``env`` is its whole environment with ``is_alone``, and else what it has besides this
        process's own.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        whole = dict(env) if is_alone else {**os.environ, **env}
        exit_code = log.with_name(f"{log.name}.{time.monotonic_ns()}.exit")
        order = Order(module, arguments, whole, str(log), str(exit_code), self._preload)
        self._popen.stdin.write(msgspec.json.encode(order) + b"\n")
        self._popen.stdin.flush()
        return Forked(int(self._popen.stdout.readline()), exit_code)

    def close(self) -> None:
        """End it, and with it what still runs."""
        self._popen.communicate()


@functools.cache
def agents() -> Nursery:
    """Return the nursery of this test process for workers with agents; it ends with it."""
    made = Nursery(*AGENTS)
    atexit.register(made.close)
    return made


# ---------------------------------------------------------------- its own process


def main() -> None:
    exit_codes: dict[int, str] = {}

    def reap(number: int, frame: FrameType | None) -> None:
        while exit_codes:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if not pid:
                return
            path = Path(exit_codes.pop(pid))
            if path.parent.exists():
                written = path.with_suffix(".part")
                written.write_text(str(os.waitstatus_to_exitcode(status)))
                written.rename(path)

    signal.signal(signal.SIGCHLD, reap)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        for name in order.preload:
            importlib.import_module(name)
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        pid = os.fork()
        if not pid:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _become(order)
        exit_codes[pid] = order.exit_code
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
        print(pid, flush=True)


def _become(order: Order) -> None:
    """Make this child a process of its own, with its own settings and log; it does not return."""
    from treadle.sdk import failpoints

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
    log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number in (1, 2):
        os.dup2(log, number)
    os.environ.clear()
    os.environ.update(order.env)
    importlib.reload(failpoints)  # It reads its variable once, when it is imported.
    try:
        _run(order.module, order.arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


def _run(module: str, arguments: Sequence[str]) -> None:
    sys.argv = [module, *arguments]
    code: object = 0
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        code = end.code
    except BaseException:  # noqa: BLE001 — this process's outermost boundary
        sys.excepthook(*sys.exc_info())
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(bool(code)))


if __name__ == "__main__":
    main()
