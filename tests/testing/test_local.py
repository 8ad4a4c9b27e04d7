"""``local``: a real server, engine and worker for one test, and nothing of them afterwards."""

from __future__ import annotations

import asyncio

from treadle.sdk import Workflow
from treadle.sdk.testing import local
from treadle.worker import TaskContext, Worker

pytest_plugins = ["treadle.sdk.testing.pytest_plugin"]


def test_local_runs_a_workflow_on_a_real_server(treadle_server: str) -> None:
    workflow = Workflow("greet")
    workflow.task("greet")
    worker = Worker()

    @worker.handler("greet")
    async def greet(ctx: TaskContext[str]) -> str:
        return f"hello {ctx.input}"

    async def story() -> None:
        async with local(
            worker, workflows=[workflow], url=treadle_server, namespace="local-test"
        ) as client:
            run = await client.start("greet", "world")
            assert await run.result(timeout_s=20) == "hello world"

    asyncio.run(story())


def test_local_brings_its_own_server() -> None:
    workflow = Workflow("wait")
    workflow.wait_for_signal("go")

    async def story() -> None:
        async with local(workflows=[workflow]) as client:
            run = await client.start("wait")
            await run.signal("go", "now")
            assert await run.result(timeout_s=20) == "now"

    asyncio.run(story())
