"""What a child of ``treadle dev`` does for it: it ends with it, and tells what it was made of.

TREADLE_DEV_PID      the parent; on Linux the kernel kills this process when it ends
TREADLE_DEV_SOURCES  a file for the modules that the app has imported, the directories of packages
                     that these are in, and the files it read while it was loaded
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

PID = "TREADLE_DEV_PID"
SOURCES = "TREADLE_DEV_SOURCES"
IMPORTS_LOOK_S = 1.0
"""How often one looks for modules that were imported late, by a handler."""
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
    """Write what the app is made of, so that other changes are ignored; nothing if it fails."""
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
    except BaseException:
        Path(path).unlink(missing_ok=True)  # Whatever mends it has to count.
        raise
    finally:
        is_loading = False
    files = {str(Path(name).resolve()) for name in read if not name.endswith(".pyc")}
    _write(Path(path), files | _modules())
    threading.Thread(target=_follow, args=(Path(path), files), daemon=True).start()


def _follow(path: Path, files: set[str]) -> None:
    """Write it again when modules were imported since, for as long as the process lives."""
    known = len(sys.modules)
    while True:
        time.sleep(IMPORTS_LOOK_S)
        if len(sys.modules) != known:
            known = len(sys.modules)
            _write(path, files | _modules())


def _write(path: Path, sources: Iterable[str]) -> None:
    new = path.with_suffix(".new")  # A reader sees the old file or the new one, whole.
    new.write_text("\n".join(sorted(sources)))
    new.replace(path)


def _modules() -> set[str]:
    """Return the files of all modules, and the directories of packages in which they are."""
    found = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
    files = {Path(file).resolve() for file in found if file}
    packages = {each.parent for each in files if (each.parent / "__init__.py").is_file()}
    return {str(each) for each in files | packages}


def _writes(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def read_sources(path: Path) -> frozenset[str]:
    """Return the files and directories a child told; none if it could not load its app."""
    try:
        return frozenset(path.read_text().splitlines())
    except OSError:
        return frozenset()
