"""Engines and workers inside the test's own loop, on a real server; and a worker played by hand.

For windows that a protocol message opens, not a crash: the hand reads a register and says what
it likes about it, when it likes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
from tests.crash.namespace import Namespace

from treadle.engine import Engine
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, Workflow, WorkflowDefinition
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream, Refused
from treadle.sdk.messages import (
    Checkpoint,
    Failure,
    StepCompleted,
    StepContinued,
    StepFailed,
    TaskDue,
    TaskLost,
)
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker import Worker

EVENT_ACK_WAIT_S = 1.0


class Stand(Namespace):
    """What a test of the engine stands on."""

    def __init__(
        self, js: JetStream, subjects: Subjects, client: Client, settings: Settings
    ) -> None:
        super().__init__(js, subjects, client)
        self.settings = settings
        self._engines: dict[Engine, asyncio.Task[None]] = {}
        self._workers: dict[Worker, asyncio.Task[None]] = {}

    # ---------------------------------------------------------------- engines, workers

    async def engine(self) -> Engine:
        """Start an engine and wait until it serves."""
        engine = Engine(self.settings, event_ack_wait_s=EVENT_ACK_WAIT_S)
        running = self._engines[engine] = asyncio.create_task(engine.run())
        ready = asyncio.create_task(engine.ready.wait())
        await asyncio.wait({running, ready}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():
            ready.cancel()
            running.result()
        return engine

    async def stop(self, engine: Engine) -> None:
        """Stop an engine in good order."""
        engine.stop()
        await self._engines.pop(engine)

    def worker(self, worker: Worker) -> None:
        """Run a worker."""
        self._workers[worker] = asyncio.create_task(worker.run(self.settings))

    async def close(self) -> None:
        """Stop everything; raise what an engine or a worker raised."""
        for engine in self._engines:
            engine.stop()
        for worker in self._workers:
            worker.stop()
        await asyncio.gather(*self._engines.values(), *self._workers.values())

    # ---------------------------------------------------------------- a worker by hand

    async def continues(self, token: int, output: object = None, **fields: Any) -> int:
        """Say that the execution holding ``token`` continues; return the event's sequence."""
        return await self.publish(StepContinued(**_settle(token, fields), output=_raw(output)))

    async def completes(self, token: int, output: object = None, **fields: Any) -> int:
        """Say that it completes."""
        return await self.publish(StepCompleted(**_settle(token, fields), output=_raw(output)))

    async def fails(self, token: int, failure: Failure, **fields: Any) -> int:
        """Say that it failed."""
        return await self.publish(StepFailed(**_settle(token, fields), failure=failure))

    async def loses(self, token: int) -> int:
        """Say that it will never settle."""
        return await self.publish(TaskLost(step="loop", type="link", token=token))

    async def is_due(self, token: int) -> int:
        """Say that a delay is over."""
        return await self.publish(TaskDue(step="loop", type="link", token=token))

    async def saves(self, token: int, *, expected: int, iteration: int = 0) -> int | Refused:
        """Write a checkpoint over the pair's newest sequence, as far as its writer knows it."""
        checkpoint = Checkpoint(
            iteration=iteration, attempt=1, token=token, nonce="hand", state=_raw({})
        )
        return await self.js.attempt(
            self.subjects.checkpoint("run", "loop"),
            msgspec.json.encode(checkpoint),
            expected=expected,
            filter=self.subjects.pair("run", "loop"),
        )


def _settle(token: int, fields: dict[str, Any]) -> dict[str, Any]:
    return {"step": "loop", "type": "link", "token": token, "head": token, **fields}


def _raw(value: object) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


def loop(**options: Any) -> WorkflowDefinition:
    """Return a workflow of one loop, ``loop`` of type ``link``."""
    options.setdefault("max_iterations", 100)
    workflow = Workflow("one-loop", timeout=options.pop("run_timeout", 0))
    workflow.agent_loop("loop", "link", **options)
    return workflow.build()


@asynccontextmanager
async def open_stand(settings: Settings) -> AsyncGenerator[Stand]:
    """Set a namespace up and give a stand on it."""
    connection = await Connection.open(settings, name="stand")
    try:
        js = JetStream(connection, message_ids=settings.message_ids)
        subjects = await ensure_topology(js, settings, event_ack_wait_s=EVENT_ACK_WAIT_S)
        async with Client.connect(settings=settings) as client:
            stand = Stand(js, subjects, client, settings)
            try:
                yield stand
            finally:
                await stand.close()
    finally:
        await connection.close()
