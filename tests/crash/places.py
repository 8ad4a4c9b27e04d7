"""How many handlers really run at a time, whatever the engine believes: the kernel counts.

Each execution locks one of as many files as the limit allows. A process that dies lets its locks go
at that very moment, so an execution that finds no file left is one too many.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def a_place(directory: Path, key: str, limit: int) -> Iterator[int]:
    """Hold one of the places of a key; yield its number, or -1 if every one was taken."""
    for number in range(limit):
        file = os.open(directory / f"place-{key}-{number}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
            continue
        try:
            yield number
        finally:
            os.close(file)
        return
    yield -1
