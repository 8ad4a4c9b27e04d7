"""``.treadle/dev.json``: how commands of a project find its running ``treadle dev``.

``Settings`` reads the address from it; here it is written, and found with the rest of it.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec

from treadle.sdk.settings import DEV_FILE


class DevFile(msgspec.Struct, frozen=True, omit_defaults=True):
    """A running development server."""

    url: str
    pid: int
    """Of ``treadle dev``; the file counts only while this process lives."""
    monitor: str = ""
    """The server's monitoring address."""


def find() -> DevFile | None:
    """Return the development server of this directory or the nearest parent, if it lives."""
    here = Path.cwd()
    for directory in (here, *here.parents):
        found = read(directory)
        if found is not None:
            return found
    return None


def read(directory: Path) -> DevFile | None:
    """Return the development server of exactly this directory, if it lives."""
    try:
        found = msgspec.json.decode((directory / DEV_FILE).read_bytes(), type=DevFile)
    except (OSError, msgspec.MsgspecError):
        return None
    return found if _lives(found.pid) else None


def write(directory: Path, entry: DevFile) -> None:
    """Publish a development server; a reader sees the old file or the new one, whole."""
    path = directory / DEV_FILE
    path.parent.mkdir(exist_ok=True)
    new = path.with_suffix(".new")
    new.write_text(json.dumps(msgspec.to_builtins(entry)) + "\n")
    new.replace(path)


def remove(directory: Path) -> None:
    """Withdraw the development server of this process."""
    found = read(directory)
    if found is not None and found.pid == os.getpid():
        (directory / DEV_FILE).unlink(missing_ok=True)


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
