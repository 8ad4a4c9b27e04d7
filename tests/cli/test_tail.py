"""``treadle run tail``: what a person reads, what a program reads, and where either goes on.

The entry point on a real server, and once as a process beside a worker that speaks; chunks are
written by hand elsewhere.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli.conftest import Run, environment
from tests.cli.test_run import Prepare, prepare
from tests.client.stage import Stage, chain

from treadle.cli import exits
from treadle.sdk import Workflow, chunks
from treadle.sdk.chunks import Chunk
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import TaskContext, Worker

__all__ = ["prepare"]

WITHIN_S = 30


async def _run(stage: Stage, *said: Chunk, status: str = "completed", step: str = "loop") -> None:
    version = await stage.client.register(chain())
    await stage.document("r1", definition=version, status=status, ended_ms=9_000)
    for chunk in said:
        await stage.js.store(stage.subjects.output("r1", step), chunks.encode(chunk))


SAID = (
    chunks.AttemptBegan(n=1),
    chunks.Text(n=2, text="It is nev"),
    chunks.Superseded(attempt=2),
    chunks.AttemptBegan(attempt=2, n=1),
    chunks.Text(attempt=1, n=3, text="er late, says a zombie"),
    chunks.TurnStarted(attempt=2, n=2),
    chunks.Thinking(attempt=2, n=3, text="An order first."),
    chunks.Text(attempt=2, n=4, text="It is "),
    chunks.Text(attempt=2, n=5, text="late.\x1b[2J"),
    chunks.ToolStarted(attempt=2, n=6, id="c1", name="read_order"),
    chunks.Progress(attempt=2, n=7, call="c1"),
    chunks.ToolEnded(attempt=2, n=8, id="c1", name="read_order", status="ok"),
    chunks.TurnEnded(attempt=2, n=9),
    chunks.Waiting(iteration=1, n=2, calls=("pay",)),
    chunks.Dropped(iteration=1, n=3, count=4),
    chunks.Stopped(iteration=1, n=4, reason="failed", detail="no\nway"),
)


def test_a_person_reads_text_as_text_and_marks_as_lines(treadle: Run, prepare: Prepare) -> None:
    prepare(lambda stage: _run(stage, *SAID))
    assert treadle("run", "tail", "r1").out.splitlines() == [
        "[loop, iteration 0]",
        "It is nev",
        "[loop, iteration 0, attempt 2]",
        "[superseded: what was said above does not stand]",
        "thinking: An order first.",
        "It is late.\\u001b[2J",
        "[read_order started]",
        "[read_order: null]",
        "[read_order ended: ok]",
        "[loop, iteration 1]",
        "[waits for a person: pay]",
        "[4 pieces were lost here]",
        "[stopped: failed: no way]",
    ]


def test_a_program_reads_every_chunk_and_whether_it_stands(treadle: Run, prepare: Prepare) -> None:
    prepare(lambda stage: _run(stage, *SAID))
    lines = treadle("run", "tail", "r1", "--json").lines
    assert [line["chunk"]["kind"] for line in lines[:5]] == [
        *("attempt.began", "text", "superseded", "attempt.began", "text")
    ]
    assert [line["stands"] for line in lines[:6]] == [True, True, True, True, False, True]
    assert lines[0]["step"] == "loop" and len(lines) == len(SAID)
    rest = treadle("run", "tail", "r1", "--json", "--after", str(lines[6]["sequence"])).lines
    assert rest == lines[7:]
    assert treadle("run", "tail", "r1", "--json", "--step", "first").lines == []


def test_the_exit_code_is_that_of_the_run(treadle: Run, prepare: Prepare) -> None:
    prepare(lambda stage: _run(stage, SAID[1], status="failed"))
    treadle("run", "tail", "r1", code=exits.code_of_status("failed"))
    assert treadle("run", "tail", "nobody", code=exits.UNKNOWN).out == ""
    refused = treadle("run", "tail", "r1", "--step", "lop", code=exits.USAGE)
    assert "has no step 'lop'" in refused.err


def test_without_following_it_says_where_to_go_on(treadle: Run, prepare: Prepare) -> None:
    prepare(lambda stage: _run(stage, SAID[1], SAID[4], status="running"))
    done = treadle("run", "tail", "r1", "--no-follow", "--step", "loop")
    assert done.out.splitlines() == ["[loop, iteration 0]", "It is never late, says a zombie"]
    assert "is running; go on: treadle run tail r1 --step loop --after 2" in done.err


@pytest.mark.slow
def test_text_is_on_the_screen_while_the_handler_speaks(settings: Settings, tmp_path: Path) -> None:
    worker, workflow = Worker(), Workflow("talk")
    workflow.task("speak", "speak")
    goes_on = asyncio.Event()

    @worker.handler("speak")
    async def speak(ctx: TaskContext[None]) -> str:
        ctx.write("first ")
        await goes_on.wait()
        ctx.write("second")
        return "end"

    async def story() -> None:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(worker, workflows=[workflow], **place) as client:
            await client.start("talk", id="r1")
            process = subprocess.Popen(
                [sys.executable, "-m", "treadle.cli", "run", "tail", "r1"],
                env=environment(settings),
                cwd=tmp_path,
                stdout=subprocess.PIPE,
            )
            try:
                assert process.stdout is not None
                seen = b""
                while not seen.endswith(b"first "):
                    piece = await asyncio.to_thread(os.read, process.stdout.fileno(), 4_096)
                    assert piece, seen
                    seen += piece
                goes_on.set()
                rest = await asyncio.to_thread(process.stdout.read)
                assert (seen + rest).decode() == "[speak]\nfirst second\n"
                assert await asyncio.to_thread(process.wait, WITHIN_S) == exits.OK
            finally:
                process.kill()
                process.wait()
                if process.stdout is not None:
                    process.stdout.close()

    asyncio.run(asyncio.wait_for(story(), WITHIN_S))
