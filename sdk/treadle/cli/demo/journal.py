"""The workers' journal: JSON lines that they append, read as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Journal:
    """Reads a file that other processes append to."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("a+b")
        self._file.seek(0)
        self._rest = b""

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield the entries that were completed since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in lines:
            yield json.loads(line)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()
