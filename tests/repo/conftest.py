"""What the checks of the repository look at: its files, as git would commit them."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMPORT_ROOTS = ("sdk", "engine", "worker")
IGNORED_DIRS = {".git", ".venv", "build", "dist", "__pycache__", ".treadle"}


def _files(root: Path) -> Iterable[Path]:
    """Yield the files git tracks or would track; every file where this is no git checkout."""
    if (root / ".git").exists():
        command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, check=True, capture_output=True, text=True)
        names = [root / name for name in listed.stdout.split("\0") if name]
        return [path for path in names if path.is_file()]
    return [
        path
        for path in root.rglob("*")
        if path.is_file() and not IGNORED_DIRS.intersection(path.relative_to(root).parts)
    ]


@pytest.fixture(scope="session")
def root() -> Path:
    """The top folder of the checkout."""
    return ROOT


@pytest.fixture(scope="session")
def tree() -> list[Path]:
    """Every file of the repository, sorted."""
    return sorted(_files(ROOT))


@pytest.fixture(scope="session")
def modules(tree: list[Path]) -> list[Path]:
    """The modules of the three import roots."""
    return [
        path
        for path in tree
        if path.suffix == ".py" and path.relative_to(ROOT).parts[0] in IMPORT_ROOTS
    ]


@pytest.fixture(scope="session")
def texts(tree: list[Path]) -> dict[Path, str]:
    """Every text file of the repository with its content; what is not UTF-8 is not text."""
    found: dict[Path, str] = {}
    for path in tree:
        try:
            found[path] = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
    return found
