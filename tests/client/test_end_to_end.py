"""The client against a real engine and a real worker.

All three run in the test's own event loop, on a real server.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.sdk import Client, NonRetryable, RunCancelled, RunFailed, Workflow
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, TaskContext, Worker

Story = Callable[[Client], Awaitable[None]]


def workflow() -> Workflow[Any]:
    made = Workflow("flow")
    first = made.task("first", "double")
    loop = made.agent_loop("loop", "count", after=[first], max_iterations=3, on_limit="park")
    made.wait_for_signal("approval", after=[loop])
    return made


def worker() -> Worker:
    made = Worker()

    @made.handler("double")
    async def double(ctx: TaskContext[int]) -> int:
        if ctx.input < 0:
            raise NonRetryable("negative")
        return ctx.input * 2

    @made.handler("count")
    async def count(ctx: LoopContext[int]) -> Any:
        if ctx.input == 0:
            return ctx.complete("zero")
        return ctx.continue_(ctx.input - 1)

    return made


@asynccontextmanager
async def serving(settings: Settings) -> AsyncGenerator[Client]:
    engine, made = Engine(settings), worker()
    jobs = [asyncio.create_task(engine.run())]
    try:
        async with asyncio.timeout(20):
            await engine.ready.wait()
        jobs.append(asyncio.create_task(made.run(settings)))
        async with Client.connect(settings=settings) as client:
            yield client
    finally:
        made.stop()
        engine.stop()
        await asyncio.gather(*jobs)


def play(settings: Settings, story: Story) -> None:
    async def served() -> None:
        async with serving(settings) as client, asyncio.timeout(30):
            await story(client)

    asyncio.run(served())


def test_a_run_is_started_watched_parked_resumed_signalled_and_its_result_read(
    settings: Settings,
) -> None:
    async def story(client: Client) -> None:
        run = await client.start(workflow(), 2, id="r1")
        watched: list[tuple[str, int | None]] = []

        async def act_on_what_is_seen() -> None:
            async for event in run.watch():
                watched.append((event.kind, event.iteration))
                if event.kind == "step.parked":
                    notes = (await run.get()).notes
                    assert "treadle run resume r1" in notes[0].command
                    await run.resume(add_iterations=2)
                elif event.kind == "step.started" and event.step == "approval":
                    assert (await run.get()).step("approval").doing == "awaiting_signal"
                    await run.signal("approval", {"by": "ana"})

        await act_on_what_is_seen()
        assert await run.result() == {"by": "ana"}
        assert [n for kind, n in watched if kind == "step.continued"] == [0, 1, 2, 3]
        assert watched[-1][0] == "run.ended"
        view = await run.get()
        assert view.status == "completed" and view.step("loop").iterations == 5
        again = await client.start("flow", 2, id="r1")
        assert await again.result() == {"by": "ana"}
        assert [view.id for view in await client.list(status="completed")] == ["r1"]

    play(settings, story)


def test_a_failure_and_a_cancel_reach_who_waits(settings: Settings) -> None:
    async def story(client: Client) -> None:
        await client.register(workflow())
        bad = await client.start("flow", -1)
        with pytest.raises(RunFailed, match="negative") as caught:
            await bad.result()
        assert (caught.value.step, caught.value.failure.type) == ("first", "NonRetryable")
        waiting = await client.start("flow", 1)
        result = asyncio.create_task(waiting.result())
        while (await waiting.get()).step("approval").status != "active":
            await asyncio.sleep(0.01)
        await waiting.cancel("not needed")
        with pytest.raises(RunCancelled, match="not needed"):
            await result

    play(settings, story)


def test_a_client_survives_a_kill_of_the_server(own_server: NatsServer, namespace: str) -> None:
    settings = Settings(url=own_server.url, namespace=namespace)

    async def story(client: Client) -> None:
        await client.register(workflow())
        run = await client.start("flow", 1)
        result = asyncio.create_task(run.result())
        seen = asyncio.create_task(_kinds(client, run.id))
        await asyncio.to_thread(own_server.kill)
        started = asyncio.create_task(client.start("flow", 0, id="meanwhile"))
        signalled = asyncio.create_task(run.signal("approval", "yes", id="s1"))
        await asyncio.to_thread(own_server.restart)
        assert (await started).id == "meanwhile"
        await signalled
        assert await result == "yes"
        assert (await seen)[-1] == "run.ended"

    play(settings, story)


async def _kinds(client: Client, run: str) -> list[str]:
    return [event.kind async for event in client.watch(run)]
