"""Repair a Python package with a model, one edit an iteration, and survive kill -9.

    load -> repair (agent loop: ask, edit, run pytest, checkpoint) -> report

Run it: ``treadle demo``. Or with a model of your own choice, on your own package::

    ANTHROPIC_API_KEY=... treadle dev examples/code_repair/app.py
    treadle run start code-repair --input '{"package": "/path/to/package"}' --watch

Read next: ``turn.py`` for the conversation, ``workspace.py`` for files and tests.
"""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
from claude import Message, client
from turn import edit_once, show
from workspace import Files, SuiteResult, Workspace, read_files, unified_diff

from treadle.sdk import NonRetryable, Retry, Workflow
from treadle.worker import LoopContext, TaskContext, Worker


class Request(msgspec.Struct, frozen=True):
    """Input of a run."""

    package: str = ""
    """Directory of the package; empty is ``timetable`` beside this file. It is only read."""


class Progress(msgspec.Struct, frozen=True):
    """The package as it stands: what the loop begins with, continues with and ends with."""

    files: Files
    tests: SuiteResult
    edit: str = ""
    """What the iteration changed."""


class Conversation(msgspec.Struct, frozen=True):
    """What the loop checkpoints."""

    messages: list[Message]
    progress: Progress


class Parts(msgspec.Struct, frozen=True):
    """Input of the last step: the outputs of the two before it."""

    load: Progress
    repair: Progress


class Report(msgspec.Struct, frozen=True):
    """Result of a run."""

    diff: str
    tests: SuiteResult
    files: Files


workflow = Workflow("code-repair", input=Request)
load = workflow.task("load", "load-package")
repair = workflow.agent_loop(
    "repair",
    "repair-package",
    after=[load],
    max_iterations=20,
    max_duration=timedelta(minutes=15),
    timeout=timedelta(minutes=5),
    retry=Retry(max_attempts=5, delay_s=0.5),
)
report = workflow.task("report", "report-repair", after=[load, repair])

worker = Worker()


@worker.handler("load-package")
async def load_package(ctx: TaskContext[Request]) -> Progress:
    if importlib.util.find_spec("pytest") is None:
        raise NonRetryable("pytest is not installed. Install it: pip install 'treadle[demo]'")
    files = read_files(Path(ctx.input.package or Path(__file__).with_name("timetable")))
    if not files:
        raise NonRetryable(f"package {ctx.input.package!r} has no files. Give its directory.")
    return Progress(files, await _run_tests(files))


@worker.handler("repair-package")
async def repair_package(ctx: LoopContext[Progress]) -> Any:
    _note(ctx, "started")
    saved = await ctx.load_checkpoint(Conversation)
    written = ctx.last_checkpoint
    # A checkpoint of this very iteration: the execution that wrote it died before it could
    # settle. Its work is done, and doing it again would be one edit too many.
    if saved is None or written is None or written.iteration != ctx.iteration:
        saved = await _edit_and_test(ctx, saved.messages if saved else [])
        await ctx.checkpoint(saved)
        _note(ctx, "saved")
    if saved.progress.tests.failed:
        return ctx.continue_(saved.progress)
    return ctx.complete(saved.progress)


@worker.handler("report-repair")
async def report_repair(ctx: TaskContext[Parts]) -> Report:
    before, after = ctx.input.load.files, ctx.input.repair.files
    return Report(unified_diff(before, after), await _run_tests(after), after)


async def _edit_and_test(ctx: LoopContext[Progress], messages: list[Message]) -> Conversation:
    with tempfile.TemporaryDirectory(prefix="code-repair-") as directory:
        workspace = Workspace(Path(directory), ctx.input.files)
        if not messages:
            show(messages, ctx.input.tests, workspace)
        async with client() as model:
            edit = await edit_once(model, messages, workspace, lambda: _note(ctx, "asked"))
        _note(ctx, "edited", edit=edit)
        tests = await workspace.run_tests() if edit else ctx.input.tests
        show(messages, tests, workspace)
        _note(ctx, "tested", passed=tests.passed, failed=len(tests.failed))
        return Conversation(messages, Progress(workspace.files, tests, edit))


async def _run_tests(files: Files) -> SuiteResult:
    with tempfile.TemporaryDirectory(prefix="code-repair-") as directory:
        return await Workspace(Path(directory), files).run_tests()


def _note(ctx: LoopContext[Progress], what: str, **fields: object) -> None:
    """Append to the journal of what was executed, committed or not; ``treadle demo`` reads it."""
    journal = os.environ.get("CODE_REPAIR_JOURNAL")
    if journal:
        where = {"iteration": ctx.iteration, "attempt": ctx.attempt, "pid": os.getpid()}
        line = json.dumps({"at": time.time(), "what": what, **where, **fields})
        with open(journal, "a", encoding="utf-8") as file:
            file.write(line + "\n")
