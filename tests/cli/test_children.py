"""A kept child: restarted after a crash, replaced when asked, ended with all it started.

Real processes: the children are small Python programs.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from treadle.cli import children
from treadle.cli.children import Child
from treadle.sdk.presence import is_process_alive

LIVES = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = f"import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); {LIVES}"
PARENT = (
    "import subprocess, sys, time\n"
    "inner = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
    "print(inner.pid, flush=True)\n"
)


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(children, "PAUSE_S_FIRST", 0.01)
    monkeypatch.setattr(children, "GRACE_S", 0.2)


class Kept:
    """A child and what it said."""

    def __init__(self, code: str) -> None:
        self.said: list[str] = []
        self.child = Child(
            "child", ["-c", code], os.environ, lambda _, line: self.said.append(line)
        )

    async def says(self, text: str, *, times: int = 1) -> None:
        """Wait until a line with this text came so often."""
        async with asyncio.timeout(20):
            while sum(text in line for line in self.said) < times:
                await asyncio.sleep(0.005)


def keep(code: str, story: Callable[[Kept], Awaitable[None]]) -> None:
    async def kept() -> None:
        it = Kept(code)
        running = asyncio.create_task(it.child.run())
        try:
            await story(it)
        finally:
            await it.child.stop()
            await asyncio.wait_for(running, 10)
        assert not is_process_alive(it.child.pid)

    asyncio.run(kept())


def test_a_crashed_child_is_started_again_and_again() -> None:
    async def story(it: Kept) -> None:
        await it.says("hello", times=3)
        await it.says("ended with status 7; starting again in", times=2)

    keep("print('hello', flush=True); raise SystemExit(7)", story)


def test_a_child_that_could_not_read_its_input_waits_for_a_change() -> None:
    async def story(it: Kept) -> None:
        await it.says("waiting for the next change")
        assert it.said.count("bad") == 1
        await it.child.restart()
        await it.says("bad", times=2)

    keep("print('bad', flush=True); raise SystemExit(2)", story)


def test_a_restart_replaces_the_process_even_if_it_ignores_sigterm() -> None:
    async def story(it: Kept) -> None:
        await it.says("up")
        first = it.child.pid
        await it.child.restart()
        await it.says("up", times=2)
        assert it.child.pid != first and not is_process_alive(first)
        assert not any("ended with" in line for line in it.said)

    keep(STUBBORN, story)


@pytest.mark.parametrize("end", ["time.sleep(60)", "raise SystemExit(2)"])
def test_what_a_child_has_started_ends_with_it(end: str) -> None:
    inner: list[int] = []

    async def story(it: Kept) -> None:
        async with asyncio.timeout(20):
            while not it.said:
                await asyncio.sleep(0.005)
        inner.append(int(it.said[0]))
        if end.startswith("raise"):
            await it.says("waiting for the next change")

    keep(PARENT + end, story)
    deadline = time.monotonic() + 10  # It was killed; the kernel takes its moment.
    while is_process_alive(inner[0]):
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_a_line_without_an_end_does_not_fill_the_memory() -> None:
    code = f"print('x' * {4 * children.LINE_BYTES_MAX}); print('after', flush=True); {LIVES}"
    keep(code, lambda it: it.says("after"))


def test_a_child_whose_program_cannot_be_started_ends_the_run(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "executable", str(tmp_path / "missing"))
    child = Child("child", [], {}, lambda _name, _line: None)
    with pytest.raises(FileNotFoundError):
        asyncio.run(child.run())
