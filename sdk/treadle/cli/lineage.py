"""What a child of ``treadle dev`` does for it: it ends with it, and tells what it was made of.

TREADLE_DEV_PID      the parent; on Linux the kernel kills this process when it ends
TREADLE_DEV_SOURCES  a file for the directories of the modules that the app imported, and for the
                     files it read meanwhile
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

PID = "TREADLE_DEV_PID"
SOURCES = "TREADLE_DEV_SOURCES"
_PR_SET_PDEATHSIG = 1


def end_with_parent() -> None:
    """Arrange that this process does not outlive ``treadle dev``, also not its kill -9."""
    parent = os.environ.pop(PID, "")
    if not parent or not sys.platform.startswith("linux"):
        return
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != int(parent):  # It ended before the request was made.
        os.kill(os.getpid(), signal.SIGKILL)


@contextmanager
def telling_sources() -> Generator[None]:
    """Write what the app was made of while it was loaded, so that other changes are ignored."""
    path = os.environ.pop(SOURCES, "")
    if not path:
        yield
        return
    read: set[str] = set()
    is_loading = True

    def hear(event: str, arguments: tuple[object, ...]) -> None:
        if is_loading and event == "open":
            name, mode, flags = arguments
            if isinstance(name, str) and mode in (None, "r", "rb") and not _writes(flags):
                read.add(name)

    sys.addaudithook(hear)  # It cannot be taken away again; this process is one of development.
    try:
        yield
    finally:
        is_loading = False
    modules = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    directories = {str(Path(file).resolve().parent) for file in modules if file}
    files = {str(Path(name).resolve()) for name in read if not name.endswith(".pyc")}
    Path(path).write_text("\n".join(sorted(directories | files)))


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def read_sources(path: Path) -> frozenset[str]:
    """Return the directories and files a child told; none if it could not load its app."""
    try:
        return frozenset(path.read_text().splitlines())
    except OSError:
        return frozenset()
