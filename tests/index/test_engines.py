"""The engine that has lived longest keeps the index, the next one goes on, and retention shows.
Method: engines and workers in the test's loop on a real server, an index as a task of theirs or as
the process that the command starts; the process is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from treadle.engine import Engine
from treadle.engine.index import beside, serving
from treadle.engine.index.beside import Indexing
from treadle.engine.retention import Retention
from treadle.engine.telemetry import supervising
from treadle.sdk import Client, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.namespace import open_namespace
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker

PATIENCE_S = 30
worker = Worker()
workflow = Workflow("echo")
workflow.task("say")


@worker.handler("say")
async def say(ctx: TaskContext[object]) -> object:
    return ctx.input


@asynccontextmanager
async def engine(settings: Settings, indexing: Indexing) -> AsyncGenerator[Engine]:
    one = Engine(settings, indexing=indexing)
    task = asyncio.create_task(one.run())
    await one.ready.wait()
    try:
        yield one
    finally:
        one.stop()
        await task


async def _answers(client: Client, *, by_index: bool) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while bool((await client.count_runs()).scanned) == by_index:
            await asyncio.sleep(0.02)


def test_another_engine_takes_over_and_a_run_that_ended_is_listed_at_once(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "TURN_S", 0.05)
    monkeypatch.setattr(beside, "TURN_S", 0.05)
    monkeypatch.setattr(serving, "COMPARE_S", 0.0)

    as_task = Indexing(as_task=True, runs_min=0)

    async def story(client: Client, oldest: Engine) -> None:
        await client.start(workflow, 0, id="r0")
        await client.result("r0")
        await _answers(client, by_index=True)
        oldest.stop()
        for n in range(1, 20):
            run = await client.start("echo", n, id=f"r{n}", metadata={"n": n})
            await run.result()
            page = await client.list_runs(status="completed", where={"n": n})
            assert [view.id for view in page.runs] == [f"r{n}"]
        await _answers(client, by_index=True)
        assert (await client.count_runs()).by_status == {"completed": 20}
        await _sweep(settings)
        assert (await client.list_runs()).runs == ()
        async with asyncio.timeout(PATIENCE_S):
            while (await client.count_runs()).total:
                await asyncio.sleep(0.02)

    async def staged() -> None:
        async with (
            engine(settings, as_task) as oldest,
            engine(settings, as_task),
            Client.connect(settings=settings) as client,
        ):
            working = asyncio.create_task(worker.run(settings))
            await story(client, oldest)
            worker.stop()
            await working

    asyncio.run(asyncio.wait_for(staged(), 50))


async def _sweep(settings: Settings) -> None:
    """Let retention take everything that has ended."""
    async with await Connection.open(settings, name="test") as connection:
        js = JetStream(connection)
        subjects = await open_namespace(js, settings)
        await Retention(js, subjects, keep_s=1).sweep(round(time.time() * 1000) + 5_000)


@pytest.mark.slow
def test_an_index_that_is_killed_is_started_again_and_ends_with_its_engine(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervising, "RETRY_S", 0.05)

    async def story() -> None:
        async with Client.connect(settings=settings) as client:
            async with engine(settings, Indexing(as_process=True, runs_min=1)):
                await client.start(workflow, 0, id="r0")
                await _answers(client, by_index=True)
                (first,) = _children()
                os.kill(first, signal.SIGKILL)
                await _answers(client, by_index=False)
                await _answers(client, by_index=True)
                assert first not in _children() and len(_children()) == 1
            assert not _children()
            await _answers(client, by_index=False)

    async def begin() -> None:
        async with engine(settings, Indexing()):
            pass

    monkeypatch.setattr(beside, "CHECK_S", 0.05)
    asyncio.run(begin())
    asyncio.run(asyncio.wait_for(story(), 50))


def _children() -> list[int]:
    """Return the processes of this one that keep an index."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            if b"treadle.engine.index" in command:
                found.append(int(child))
    return found
