"""The demo from start to end: a loop repairs a package and loses its worker on the way."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console

from treadle.cli import exits, output
from treadle.cli.demo.journal import Journal
from treadle.cli.demo.keys import on_key
from treadle.cli.demo.places import examples_dir
from treadle.cli.demo.screen import Screen, show_next, show_summary
from treadle.cli.demo.stage import MODEL, Stage
from treadle.cli.demo.story import Story
from treadle.cli.demo.summary import Summary
from treadle.cli.demo.verify import verify
from treadle.sdk.client import Client, RunHandle
from treadle.sdk.errors import RunFailed, ServerError, TreadleError, UserError
from treadle.sdk.settings import Settings

WORKFLOW = "code-repair"
LOOP = "repair"
KILL_AFTER = 2
"""Committed iterations before the worker is killed: something is there to be lost, and is not."""
START_TIMEOUT_S = 30
RUN_TIMEOUT_S = {True: 120, False: 20 * 60}
"""By whether the model is scripted: a real one takes its time."""
_TICK_S = 0.02
_TERMINATED = 143


def run_demo(no_kill: bool, json: bool) -> int:
    """Run the demo and return the exit code: 0 only if the repaired package's tests pass."""
    console = Console(quiet=True) if json else output.console()
    try:
        summary = asyncio.run(_Demo(console, no_kill).play())
    except asyncio.CancelledError:
        return _TERMINATED
    if json:
        output.emit(summary.as_json())
    else:
        show_summary(console, summary)
        show_next(console, examples_dir())
    return exits.OK if summary.repaired else exits.RUN_FAILED


class _Demo:
    def __init__(self, console: Console, no_kill: bool) -> None:
        self._console = console
        self._no_kill = no_kill
        self._example = examples_dir() / "code_repair"
        self._scripted = not os.environ.get("ANTHROPIC_API_KEY")
        self._story = Story()
        self._kill_asked = False
        for module in ("anthropic", "pytest"):
            if find_spec(module) is None:
                raise UserError(
                    f"the demo needs {module}, which is not installed. "
                    f"Install it: pip install 'treadle[demo]'"
                )

    async def play(self) -> Summary:
        _cancel_on_sigterm()
        with tempfile.TemporaryDirectory(prefix="treadle-demo-") as name:
            directory = Path(name)
            journal = Journal(directory / "journal")
            try:
                with Stage(directory, self._example, directory / "journal") as stage:
                    return await self._act(stage, journal, directory)
            finally:
                journal.close()

    async def _act(self, stage: Stage, journal: Journal, directory: Path) -> Summary:
        with Screen(self._console, self._story) as screen:
            started = time.monotonic()
            stage.start_server()
            stage.start_engine()
            if self._scripted:
                stage.start_model()
            await _until(lambda: _is_set_up(stage), stage)
            stage.start_worker()
            await _until(lambda: _is_registered(stage), stage)
            screen.say(
                f"server, engine, worker {stage.worker_pid} and {self._model} are up after "
                f"{time.monotonic() - started:.1f} s"
            )
            async with Client.connect(settings=Settings(url=stage.url)) as client:
                begun = time.monotonic()
                run = await client.start(WORKFLOW, {})
                screen.say(f"run {run.id} repairs {self._example / 'timetable'} (a copy of it)")
                await self._follow(run, stage, journal, screen)
                report = await self._result(run)
                seconds = time.monotonic() - begun
        return self._summary(run.id, report, seconds, directory)

    async def _follow(self, run: RunHandle, stage: Stage, journal: Journal, screen: Screen) -> None:
        """Watch the run until it has ended, and kill the worker half-way."""
        watcher = asyncio.create_task(self._watch(run))
        try:
            with on_key("k", self._ask_to_kill) as has_keys:
                screen.hint("press k to kill the worker" if has_keys else "")
                deadline = time.monotonic() + RUN_TIMEOUT_S[self._scripted]
                while not watcher.done():
                    self._read(journal)
                    if self._should_kill(stage):
                        self._kill(stage, journal, screen)
                    screen.refresh()
                    if words := stage.ended():
                        raise TreadleError(f"the demo cannot go on: {words}")
                    if time.monotonic() > deadline:
                        raise TimeoutError(
                            f"run {run.id} has not ended in {RUN_TIMEOUT_S[self._scripted]} s. "
                            f"The last words of the processes: {stage.last_words()}"
                        )
                    await asyncio.wait([watcher], timeout=_TICK_S)
            await watcher
            self._read(journal)
            screen.refresh()
        finally:
            watcher.cancel()

    async def _result(self, run: RunHandle) -> dict[str, Any]:
        try:
            report: dict[str, Any] = await run.result()
        except RunFailed as exc:
            hint = "Please report it."
            if not self._scripted:
                hint = "Without ANTHROPIC_API_KEY the demo asks a scripted model instead."
            raise RunFailed(exc.run, exc.step, exc.iteration, exc.failure, hint) from exc
        return report

    async def _watch(self, run: RunHandle) -> None:
        async for event in run.watch():
            if event.step != LOOP:
                continue
            if event.kind == "step.continued" and event.iteration is not None:
                self._story.commit(event.iteration + 1)
            elif event.kind == "step.ended" and event.iterations:
                self._story.commit(event.iterations)

    def _read(self, journal: Journal) -> None:
        for entry in journal.news():
            self._story.note(entry)

    def _ask_to_kill(self) -> None:
        self._kill_asked = True

    def _should_kill(self, stage: Stage) -> bool:
        if self._kill_asked:
            return True
        if self._no_kill or self._story.kills or self._story.committed < KILL_AFTER:
            return False
        # The worst moment: the edit is made and the tests run, and nothing of it is saved.
        current = self._story.current(stage.worker_pid)
        return current is not None and current.phase == "testing"

    def _kill(self, stage: Stage, journal: Journal, screen: Screen) -> None:
        self._kill_asked = False
        at = time.time()
        pid = stage.kill_worker()
        self._read(journal)  # What it wrote before it died.
        self._story.kill(pid, at)
        successor = stage.start_worker()
        screen.say(f"kill -9 {pid}; worker {successor} starts", style="bold red")

    @property
    def _model(self) -> str:
        if self._scripted:
            return "a scripted model (ANTHROPIC_API_KEY is not set)"
        return os.environ.get(MODEL) or "Claude"

    def _summary(
        self, run: str, report: dict[str, Any], seconds: float, directory: Path
    ) -> Summary:
        package = self._example / "timetable"
        repaired, verdict = verify(report["files"], package, directory / "verified")
        story = self._story
        return Summary(
            run=run,
            status="completed",
            model=self._model,
            iterations=story.committed,
            executions=len(story.executions),
            model_calls=story.model_calls,
            kills=story.kills,
            why_no_kill="no, as asked" if self._no_kill else "no: the loop was done before",
            seconds=seconds,
            diff=report["diff"],
            repaired=repaired,
            verdict=verdict,
        )


async def _is_set_up(stage: Stage) -> bool:
    try:
        async with Client.connect(settings=Settings(url=stage.url)):
            return True
    except ServerError:
        return False  # The engine is about to do it.


async def _is_registered(stage: Stage) -> bool:
    async with Client.connect(settings=Settings(url=stage.url)) as client:
        return WORKFLOW in await client.workflows()


async def _until(condition: Callable[[], Awaitable[bool]], stage: Stage) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not await condition():
        if words := stage.ended():
            raise TreadleError(f"the demo cannot start: {words}")
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"the demo's processes are not ready after {START_TIMEOUT_S} s. "
                f"Their last words: {stage.last_words()}"
            )
        await asyncio.sleep(_TICK_S)


def _cancel_on_sigterm() -> None:
    task = asyncio.current_task()
    if task is not None and sys.platform != "win32":
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
