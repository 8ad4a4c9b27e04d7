"""A real server, engine and workers for one test, in this process, gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncGenerator, Iterable
from typing import TYPE_CHECKING

from treadle.engine import Engine
from treadle.sdk.builder import Workflow
from treadle.sdk.client import Client
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

if TYPE_CHECKING:
    from treadle.worker import Worker


@contextlib.asynccontextmanager
async def local(
    *workers: Worker,
    workflows: Iterable[Workflow | WorkflowDefinition] = (),
    url: str = "",
    namespace: str = "treadle",
) -> AsyncGenerator[Client]:
    """Start everything, register the workflows, and give a client; stop it all at the end.

    With ``url`` an existing server is used. Raises ``ServerUnsuitable`` if no nats-server is
    installed: `pip install 'treadle[server]'`.
    """
    with contextlib.ExitStack() as stack:
        if not url:
            store = stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-"))
            server = NatsServer.start(store)
            stack.callback(server.stop)
            url = server.url
        settings = Settings.from_env(url=url, namespace=namespace)
        engine = Engine(settings)
        tasks = [asyncio.create_task(engine.run())]
        try:
            await _ready(engine, tasks[0])
            tasks.extend(asyncio.create_task(worker.run(settings)) for worker in workers)
            async with Client.connect(url=url, namespace=namespace) as client:
                for workflow in workflows:
                    await client.register(workflow)
                yield client
        finally:
            for worker in workers:
                worker.stop()
            await _finished(tasks[1:])
            engine.stop()
            await _finished(tasks[:1])


async def _ready(engine: Engine, task: asyncio.Task[None]) -> None:
    ready = asyncio.create_task(engine.ready.wait())
    await asyncio.wait([ready, task], return_when=asyncio.FIRST_COMPLETED)
    if not ready.done():
        ready.cancel()
        await task  # It ended before it was ready: raises why.


async def _finished(tasks: list[asyncio.Task[None]]) -> None:
    if tasks:
        await asyncio.wait(tasks)
        for task in tasks:
            await task
