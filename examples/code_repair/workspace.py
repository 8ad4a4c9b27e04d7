"""The package under repair: its files as text, edits, the real pytest, a real diff.

The text travels with the run: in the outputs of its steps. A directory is only ever a copy,
unpacked anew for each execution. Two executions of one iteration, the one that was killed and
the one that took over, therefore share no file, and both start from what was committed.
"""

from __future__ import annotations

import asyncio
import difflib
import os
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import msgspec

Files = dict[str, str]

SUITE_TIMEOUT_S = 60
"""An edit can make a test run for ever; then the suite is killed and counts as failed."""

OUTPUT_CHARS_MAX = 4_000
"""Of one failing test's output: enough for a traceback, small in a conversation."""

_SUFFIXES = {".py", ".toml", ".md"}
# The edited code runs with this and nothing else, above all without the key of the model.
_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "PYTHONPATH", "SYSTEMROOT")


class SuiteResult(msgspec.Struct, frozen=True):
    """What pytest said."""

    passed: int
    failed: tuple[str, ...]
    """Ids of the tests that failed, in the order they ran."""
    output: str = ""
    """Output of the first one."""


class EditRefused(Exception):
    """The edit cannot be made as asked; the text is for the model."""


def read_files(directory: Path) -> Files:
    """Return the text of a package's files by path relative to the directory."""
    files: Files = {}
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        hidden = any(part.startswith((".", "__pycache__")) for part in relative.parts)
        if path.is_file() and path.suffix in _SUFFIXES and not hidden:
            files[relative.as_posix()] = path.read_text(encoding="utf-8")
    return files


def unified_diff(before: Files, after: Files) -> str:
    """Return what changed, as ``diff -u`` writes it."""
    lines: list[str] = []
    for name in sorted(before.keys() | after.keys()):
        old = before.get(name, "").splitlines(keepends=True)
        new = after.get(name, "").splitlines(keepends=True)
        lines += difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(lines)


class Workspace:
    """A directory that holds one copy of the package."""

    def __init__(self, directory: Path, files: Files) -> None:
        """Unpack the files; the directory is this workspace's own."""
        self.directory = directory.resolve()
        self.files: Files = {}
        for name, text in files.items():
            self._write(name, text)

    def read(self, name: str) -> str:
        """Return the text of a file; raise ``EditRefused`` if the package has no such file."""
        if name not in self.files:
            have = ", ".join(sorted(self.files))
            raise EditRefused(f"there is no file {name!r}; the package has {have}")
        return self.files[name]

    def replace(self, name: str, old: str, new: str) -> None:
        """Replace the one occurrence of ``old``; raise ``EditRefused`` if there is not just one."""
        text = self.read(name)
        if name.startswith("tests/") or not name.endswith(".py"):
            raise EditRefused(f"{name!r} may not change: repair the package, not its tests")
        found = text.count(old) if old else 0
        if found != 1:
            raise EditRefused(
                f"'old' occurs {found} times in {name!r}, but must occur exactly once; "
                f"read the file and copy the text with enough lines around it"
            )
        self._write(name, text.replace(old, new))

    def _write(self, name: str, text: str) -> None:
        path = (self.directory / name).resolve()
        if not path.is_relative_to(self.directory):
            raise EditRefused(f"{name!r} lies outside the package")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        self.files[name] = text

    async def run_tests(self) -> SuiteResult:
        """Run the package's tests in a process of their own."""
        report = self.directory / "junit.xml"
        report.unlink(missing_ok=True)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
        command += ["-o", "junit_family=xunit1", f"--junitxml={report}"]
        environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
        # A stale .pyc hides an edit of equal size in the same second.
        environment |= {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        process = await asyncio.create_subprocess_exec(
            *command,
            cwd=self.directory,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            stdout, _ = await asyncio.wait_for(process.communicate(), SUITE_TIMEOUT_S)
        except TimeoutError:
            text = f"the tests did not end within {SUITE_TIMEOUT_S} s"
            return SuiteResult(0, ("the whole suite",), text)
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if not report.exists():
            return SuiteResult(0, ("the whole suite",), stdout.decode(errors="replace"))
        return _read_report(report)


def _read_report(report: Path) -> SuiteResult:
    passed = 0
    failed: list[str] = []
    output = ""
    for case in ElementTree.parse(report).getroot().iter("testcase"):
        problem = case.find("failure")
        if problem is None:
            problem = case.find("error")
        if problem is None:
            passed += 1
            continue
        failed.append(f"{case.get('file', case.get('classname', ''))}::{case.get('name', '')}")
        output = output or (problem.text or "")[-OUTPUT_CHARS_MAX:]
    if passed == 0 and not failed:
        failed.append("no test was found")
    return SuiteResult(passed, tuple(failed), output)
