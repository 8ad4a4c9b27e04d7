"""Which files are the app's: what a worker of ``treadle dev`` tells, and which changes then count.

The app is imported in a process of its own, which tells what it is made of, and ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from watchfiles import Change

from treadle.cli import lineage, reload

LOADS = """
import importlib, sys, time
from pathlib import Path
from treadle.cli import app, lineage
lineage.IMPORTS_LOOK_S = 0.01
with lineage.telling_sources():
    app.load("app.py")
if "late" in sys.argv:
    importlib.import_module("late")
    until = time.monotonic() + 10
    while "late.py" not in Path(sys.argv[1]).read_text() and time.monotonic() < until:
        time.sleep(0.01)
"""


@pytest.fixture
def counts(tmp_path: Path) -> reload.Counts:
    for name in ("beside.py", "helper.py", "late.py", "loop.py", "pack/__init__.py", "pack/a.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    (tmp_path / "read.json").write_text("{}")
    return reload.Counts(tmp_path / "sources")


def load(directory: Path, source: str, *arguments: str) -> None:
    (directory / "app.py").write_text(source)
    command = [sys.executable, "-c", LOADS, str(directory / "sources"), *arguments]
    environment = {**os.environ, lineage.SOURCES: str(directory / "sources")}
    subprocess.run(command, cwd=directory, env=environment, capture_output=True, check=False)


def asks(counts: reload.Counts, tmp_path: Path, *names: str) -> list[str]:
    paths = {name: str((tmp_path / name).resolve()) for name in names}
    return [name for name, path in paths.items() if counts(Change.modified, path)]


def test_only_what_the_app_imports_or_reads_and_what_is_in_its_packages_counts(
    tmp_path: Path, counts: reload.Counts
) -> None:
    load(tmp_path, "import helper, pack.a\nopen('read.json').read()")
    own = ("app.py", "helper.py", "read.json", "pack/a.py", "pack/new.py")
    assert asks(counts, tmp_path, *own) == [*own]
    others = ("beside.py", "late.py", "new.py", "pack/data.json", "written.json", "app.pyc")
    assert asks(counts, tmp_path, *others) == []


@pytest.mark.slow
def test_what_a_handler_imports_later_counts_from_then_on(
    tmp_path: Path, counts: reload.Counts
) -> None:
    load(tmp_path, "", "late")
    assert asks(counts, tmp_path, "app.py", "late.py", "beside.py") == ["app.py", "late.py"]


@pytest.mark.slow
def test_while_the_app_cannot_be_loaded_every_source_may_mend_it(
    tmp_path: Path, counts: reload.Counts
) -> None:
    load(tmp_path, "import helper")
    assert asks(counts, tmp_path, "missing.py") == []
    load(tmp_path, "import missing")
    names = ("app.py", "missing.py", "beside.py", "data.yaml")
    assert asks(counts, tmp_path, *names, "data.txt") == [*names]
