"""What a child of ``treadle dev`` does for it: it ends with it, and tells what it was made of.

TREADLE_DEV_PID      the parent; on Linux the kernel kills this process when it ends
TREADLE_DEV_SOURCES  a file for the directories of the modules that the app imported
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
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


def tell_sources() -> None:
    """Write the directories of the imported modules, so that changes elsewhere are ignored."""
    path = os.environ.pop(SOURCES, "")
    if not path:
        return
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    directories = {str(Path(file).resolve().parent) for file in files if file}
    Path(path).write_text("\n".join(sorted(directories)))


def read_sources(path: Path) -> frozenset[str]:
    """Return the directories a child told; none if it could not load its app."""
    try:
        return frozenset(path.read_text().splitlines())
    except OSError:
        return frozenset()
