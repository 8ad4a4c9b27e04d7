"""Starts the processes of a test in a moment: ``python -m tests.crash.nursery MEMBER``.

MEMBER is a module with ``main(role)``; it is imported here once, and forked. Orders come in as
JSON lines, process ids go out. When the nursery ends, on the end of its input or otherwise, so do
all it has started.
"""

from __future__ import annotations

import ctypes
import importlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec

ROOT = Path(__file__).resolve().parents[2]
_PR_SET_PDEATHSIG = 1


class Order(msgspec.Struct):
    """A process to start."""

    role: str
    env: dict[str, str]
    log: str


class Nursery:
    """The nursery as a test sees it."""

    def __init__(self, member: str = "tests.crash.member") -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.nursery", member],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def start(self, order: Order) -> int:
        """Start a process and return its id."""
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        self._popen.stdin.write(msgspec.json.encode(order) + b"\n")
        self._popen.stdin.flush()
        return int(self._popen.stdout.readline())

    def close(self) -> None:
        """End it, and with it what still runs."""
        self._popen.communicate()


def main() -> None:
    member = importlib.import_module(sys.argv[1])
    # Nobody waits for the children: the kernel forgets them as they end.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for line in sys.stdin.buffer:
        order = msgspec.json.decode(line, type=Order)
        pid = os.fork()
        if not pid:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            _become(order)
            member.main(order.role)
            os._exit(0)
        print(pid, flush=True)


def _become(order: Order) -> None:
    """Make this child a process of its own, with its own settings and log."""
    from treadle.sdk import failpoints

    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    for number in (1, 2):
        os.dup2(log, number)
    os.close(0)
    os.environ.update(order.env)
    importlib.reload(failpoints)  # It reads its variable once, when it is imported.


if __name__ == "__main__":
    main()
