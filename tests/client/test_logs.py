"""``client.logs`` and ``treadle run logs``: what handlers have logged, of all attempts, each once.

A real run once; else lines that are written by hand.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.cli.conftest import Run, treadle
from tests.client.stage import Stage, chain, open_stage

from treadle.cli import exits
from treadle.sdk import Retry, UserError, Workflow, chunks
from treadle.sdk.chunks import AttemptBegan, Chunk, Logged, Text
from treadle.sdk.client import Client, LogLine
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import TaskContext, Worker

__all__ = ["treadle"]

SAID: tuple[Chunk, ...] = (
    AttemptBegan(n=1),
    Logged(n=2, level="info", text="begin", time_ms=3_723_004),
    Text(n=3, text="hello"),
    Logged(n=4, level="error", text="broken\x1b[2J", time_ms=3_723_005, traceback="Trace\nback"),
    Logged(n=4, level="error", text="broken\x1b[2J", time_ms=3_723_005, traceback="Trace\nback"),
    AttemptBegan(n=1, attempt=2),
    Logged(n=2, attempt=2, level="warning", text="again", fields={"url": "http://a"}),
    AttemptBegan(n=1, iteration=1),
    Logged(n=2, iteration=1, level="debug", text="next"),
)


def read(settings: Settings, **wanted: Any) -> list[LogLine]:
    async def on_stage() -> list[LogLine]:
        async with open_stage(settings) as stage:
            await write(stage)
            return [line async for line in stage.client.logs("r1", **wanted)]

    return asyncio.run(on_stage())


async def write(stage: Stage) -> None:
    version = await stage.client.register(chain())
    await stage.document("r1", definition=version, status="completed", ended_ms=9_000)
    subject = stage.subjects.output("r1", "loop")
    for chunk in SAID:
        await stage.js.store(subject, chunks.encode(chunk))


@pytest.mark.parametrize(
    ("wanted", "texts"),
    [
        ({}, ["begin", "broken\x1b[2J", "again", "next"]),
        ({"level": "warning"}, ["broken\x1b[2J", "again"]),
        ({"iteration": 1}, ["next"]),
        ({"step": "loop", "level": "INFO", "follow": True}, ["begin", "broken\x1b[2J", "again"]),
        ({"after": 6}, ["again", "next"]),
    ],
)
def test_lines_of_all_attempts_come_once_and_can_be_chosen(
    settings: Settings, wanted: dict[str, Any], texts: list[str]
) -> None:
    found = read(settings, **wanted)
    assert [line.text for line in found] == texts


@pytest.mark.parametrize("wanted", [{"level": "loud"}, {"iteration": -1}, {"step": "nowhere"}])
def test_what_cannot_be_chosen_is_an_error(settings: Settings, wanted: dict[str, Any]) -> None:
    with pytest.raises(UserError):
        read(settings, **wanted)


@pytest.mark.slow
def test_the_command_prints_a_line_each_and_cannot_be_steered(
    settings: Settings, treadle: Run
) -> None:
    read(settings)
    assert treadle("run", "logs", "r1").out.splitlines() == [
        "01:02:03.004 INFO     [loop, iteration 0] begin",
        "01:02:03.005 ERROR    [loop, iteration 0] broken\\u001b[2J",
        "Trace",
        "back",
        "00:00:00.000 WARNING  [loop, iteration 0, attempt 2] again url=http://a",
        "00:00:00.000 DEBUG    [loop, iteration 1] next",
    ]
    only = treadle("run", "logs", "r1", "--level", "warning", "--iteration", "0", "--json").lines
    assert [(line["text"], line["attempt"]) for line in only] == [
        ("broken\x1b[2J", 1),
        ("again", 2),
    ]
    assert treadle("run", "logs", "r1", "--step", "loop", "--follow").out.count("\n") == 6
    treadle("run", "logs", "r1", "--level", "loud", code=exits.USAGE)
    # What is logged is no part of what the run says.
    assert treadle("run", "tail", "r1", "--step", "loop").out.count("begin") == 0


def test_a_failed_attempts_lines_tell_why_while_the_run_goes_on(settings: Settings) -> None:
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.logger.warning("attempt %d", ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("no luck")
        return "end"

    workflow: Workflow[Any] = Workflow("flow")
    workflow.task("s", "work", retry=Retry(max_attempts=2, delay_s=0.01))

    async def follow(client: Client) -> list[tuple[str, int]]:
        return [(line.text, line.attempt) async for line in client.logs("r1", follow=True)]

    async def story() -> None:
        where = {"url": settings.url, "namespace": settings.namespace}
        async with local(worker, workflows=[workflow], **where) as client:
            run = await client.start("flow", id="r1")
            followed = await asyncio.wait_for(follow(client), 30)
            assert followed == [("attempt 1", 1), ("attempt 2", 2)]
            assert [line.text async for line in run.logs()] == ["attempt 1", "attempt 2"]
            assert [item.chunk async for item in run.stream(follow=False)]

    asyncio.run(story())
