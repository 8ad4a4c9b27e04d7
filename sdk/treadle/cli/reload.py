"""Which changes of files ask for a new worker.

Those of the modules that the app has imported, at its start or since, of Python files in the same
directory of a package as one of these, and of the files it read while it was loaded. A script
beside the app, or a handler that writes files (an agent that edits a repository, say), must not
restart its worker, so nothing else counts. While the app cannot be loaded, every Python, YAML and
JSON file does.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

from watchfiles import Change, DefaultFilter
from watchfiles import awatch as _awatch  # pyright: ignore[reportUnknownVariableType]

from treadle.cli import lineage

SUFFIXES = (".py", ".yaml", ".yml", ".json")
DEBOUNCE_MS = 200
"""An editor saves in several steps."""
_STEP_MS = 50


class Counts(DefaultFilter):
    """True for a change that asks for a new worker."""

    def __init__(self, sources: Path) -> None:
        super().__init__(ignore_dirs=(*DefaultFilter.ignore_dirs, ".treadle"))
        self._sources = sources

    def __call__(self, change: Change, path: str) -> bool:
        if not super().__call__(change, path):
            return False
        sources = lineage.read_sources(self._sources)
        if not sources:
            return path.endswith(SUFFIXES)
        return path in sources or (path.endswith(".py") and str(Path(path).parent) in sources)


async def changes(directory: Path, sources: Path) -> AsyncIterator[list[str]]:
    """Yield the names of changed files of the app, relative to its (resolved) directory."""
    async for found in _awatch(
        directory,
        watch_filter=Counts(sources),
        debounce=DEBOUNCE_MS,
        step=_STEP_MS,
        ignore_permission_denied=True,
    ):
        yield sorted({str(Path(path).relative_to(directory)) for _, path in found})
