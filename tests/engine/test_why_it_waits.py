"""A run that waits says for what: a worker that is blocked, that keeps dying, or that is missing.
Method: engine and workers on a real server; what the notes and the doctor say while it lasts."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.cli.doctor_checks import Check, examine
from treadle.sdk import Workflow
from treadle.worker import TaskContext, Worker

SCRIPT = """
import os, sys
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker, serve

worker = Worker()

@worker.handler("kills")
async def kills(ctx: TaskContext):
    os._exit(7)

serve(worker, Settings(url=sys.argv[1], namespace=sys.argv[2]))
"""


def _task(name: str) -> Workflow[Any]:
    workflow = Workflow(f"one-{name}")
    workflow.task("only", name)
    return workflow


async def _notes(stand: Stand, run: str) -> list[str]:
    return [note.text for note in (await stand.client.get(run)).notes]


async def _until_noted(stand: Stand, run: str, text: str) -> str:
    """Wait until the only note of a run has this text in it, and return it."""
    (note,) = await stand.until(
        f"a note of {run} with {text!r}",
        partial(_notes, stand, run),
        lambda notes: len(notes) == 1 and text in notes[0],
    )
    return note


@asynccontextmanager
async def in_a_thread(stand: Stand, worker: Worker) -> AsyncIterator[None]:
    """Run a worker on a loop of its own, which its handlers may block."""
    thread = threading.Thread(target=lambda: asyncio.run(worker.run(stand.settings)))
    thread.start()
    try:
        yield
    finally:
        worker.stop()
        await asyncio.to_thread(thread.join)


async def _worker_checks(stand: Stand) -> list[Check]:
    checks = await examine(stand.settings, "http://127.0.0.1:9")
    return [check for check in checks if check.name == "workers" and check.status == "warn"]


@pytest.mark.slow
@pytest.mark.parametrize("is_inner", [False, True], ids=["handler", "task-of-handler"])
def test_a_blocked_event_loop_is_named_by_doctor_and_by_the_runs_behind_it(
    play: Play, is_inner: bool
) -> None:
    release = threading.Event()
    worker = Worker("alpha")

    async def block() -> None:
        release.wait(30)

    @worker.handler("blocks")
    async def blocks(ctx: TaskContext[None]) -> None:
        await (asyncio.create_task(block()) if is_inner else block())

    @worker.handler("waits")
    async def waits(ctx: TaskContext[None]) -> str:
        return "done"

    async def story(stand: Stand) -> None:
        await stand.engine()
        async with in_a_thread(stand, worker):
            try:
                await stand.client.start(_task("blocks"), None, id="r1")
                await _until_noted(stand, "r1", "has been blocked for")
                await stand.client.start(_task("waits"), None, id="r2")
                told = await _until_noted(stand, "r2", "waits for a blocked worker")
                assert "event loop of worker 'alpha' has been blocked for " in told
                assert " s at " in told and "test_why_it_waits.py:" in told
                assert "plain function (def)" in told
                (warning,) = await _worker_checks(stand)
                assert "worker 'alpha' has been blocked for " in warning.text
                assert "test_why_it_waits.py:" in warning.text
                assert "plain function (def)" in warning.remedy
                if not is_inner:
                    assert "by a handler of type 'blocks' (run 'r1')" in told
                    assert "by a handler of type 'blocks' (run 'r1')" in warning.text
                    await _until_noted(stand, "r1", "step 'only' blocks its worker")
            finally:
                release.set()
            assert await stand.client.result("r2", timeout_s=15) == "done"
            await stand.until("it is well again", partial(_worker_checks, stand), lambda it: not it)
        assert [process.role for process in await stand.client.processes()] == ["engine"]

    play(story)


@pytest.mark.slow
def test_a_handler_that_kills_its_process_is_told_by_its_losses(play: Play, tmp_path: Path) -> None:
    script = tmp_path / "app.py"
    script.write_text(SCRIPT)

    async def story(stand: Stand) -> None:
        arguments = [sys.executable, str(script), stand.settings.url, stand.settings.namespace]
        await stand.engine()
        await stand.client.start(_task("kills"), None, id="r1")
        for times in ("once", "2 times"):
            process = await asyncio.to_thread(subprocess.run, arguments, timeout=30, check=False)
            assert process.returncode == 7
            told = await _until_noted(stand, "r1", f"its worker died or stopped {times}")
            assert "no worker serves" not in told
        assert "(losses: 2 of at most 10)" in told and "its handler may be what ends" in told
        assert "none that serves task type 'kills' is left" in told

    play(story)


def test_workers_that_serve_other_types_are_told_apart_from_none(play: Play) -> None:
    worker = Worker()

    @worker.handler("plan")
    async def plan(ctx: TaskContext[None]) -> None: ...

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(_task("think"), None, id="r1")
        none = await _until_noted(stand, "r1", "no worker serves task type 'think'")
        assert none.endswith("none is running")
        stand.worker(worker)
        told = await _until_noted(stand, "r1", "1 worker runs, none serves task type 'think'")
        assert "served: plan" in told and '@worker.handler("think")' in told
        (note,) = (await stand.client.get("r1")).notes
        assert note.command == "treadle worker FILE.py" and "Did you mean" not in told
        await stand.client.start(_task("plam"), None, id="r2")
        told = await _until_noted(stand, "r2", "none serves task type 'plam'")
        assert "Did you mean 'plan'? Or start one" in told

    play(story)
