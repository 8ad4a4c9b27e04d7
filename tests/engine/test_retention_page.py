"""The page about retention: its numbers are those of the code, and its option does what it says.

Method: an engine as a process of its own, told to keep runs for a second, on a real server.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.cli.serve import DAY_S
from treadle.engine.retention import RETENTION_S, SWEEP_S
from treadle.engine.topology import DEAD_LETTER_MAX_AGE_S, EXTERNAL_MAX_AGE_S, OUTPUT_MAX_AGE_S
from treadle.sdk import UnknownRun, Workflow
from treadle.worker import TaskContext, Worker

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "retention.md").read_text()

workflow = Workflow("greet")
workflow.task("hello")
worker = Worker()


@worker.handler("hello")
async def hello(ctx: TaskContext[str]) -> str:
    return f"hello {ctx.input}"


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert RETENTION_S == 30 * DAY_S and "**30 days after its end**" in PAGE
    assert OUTPUT_MAX_AGE_S == EXTERNAL_MAX_AGE_S == 7 * DAY_S
    assert DEAD_LETTER_MAX_AGE_S == 90 * DAY_S and "| 90 days |" in PAGE
    assert SWEEP_S == 60 and "about once a minute" in PAGE


@pytest.mark.slow
def test_an_engine_deletes_ended_runs_after_the_days_it_is_told_and_their_ids_are_free(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        settings = stand.settings
        command = [sys.executable, "-m", "treadle.cli", "engine"]
        engine = subprocess.Popen(
            [*command, "--retention-days", str(1 / DAY_S)],
            env={**os.environ, **settings.to_env()},
        )
        try:
            stand.worker(worker)
            run = await stand.client.start(workflow, "Ada", id="one")
            assert await run.result(timeout_s=20) == "hello Ada"
            deadline = time.monotonic() + 20
            with pytest.raises(UnknownRun):
                while time.monotonic() < deadline:
                    await stand.client.get("one")
                    await asyncio.sleep(0.1)
            again = await stand.client.start(workflow, "Bob", id="one")
            assert await again.result(timeout_s=20) == "hello Bob"
        finally:
            engine.send_signal(signal.SIGTERM)
            assert engine.wait(20) == 0

    play(story)
