"""A namespace without an engine, and a hand that writes what an engine would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import msgspec

from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import (
    Beat,
    Ended,
    Inline,
    Parked,
    Register,
    StepCompleted,
    StepContinued,
    Task,
    WorkerPresence,
)
from treadle.sdk.presence import BEAT_S
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects

NO_INPUT = Inline(msgspec.Raw(b"null"))


def raw(value: Any) -> msgspec.Raw:
    return msgspec.Raw(msgspec.json.encode(value))


@dataclass
class Stage:
    """One namespace: the client under test, and the writer's side of it."""

    client: Client
    js: JetStream
    subjects: Subjects
    settings: Settings
    beating: list[asyncio.Task[None]] = field(default_factory=list[asyncio.Task[None]])

    async def document(self, run: str, **fields: Any) -> int:
        """Write a run's document as it would stand."""
        defaults = {"workflow": "flow", "definition": "", "requested_ms": 1_000}
        document = RunDocument(run=run, **{**defaults, **fields})
        body = msgspec.json.encode(document)
        return await self.js.store(self.subjects.run_document(run), body)

    async def register(self, run: str, step: str, task_type: str, value: Register) -> int:
        subject = self.subjects.register(run, step, task_type)
        return await self.js.store(subject, msgspec.json.encode(value))

    async def event(self, run: str, event: msgspec.Struct) -> int:
        return await self.js.store(self.subjects.event(run), msgspec.json.encode(event))

    async def present(self, role: Any, *types: str, beats: bool = True) -> None:
        """Write the presence record of a process of another host, and give its signs of life."""
        presence = WorkerPresence(incarnation=f"{role}1", role=role, types=types, host="elsewhere")
        subject = self.subjects.worker(presence.incarnation)
        await self.js.store(subject, msgspec.json.encode(presence))
        if beats:
            self.beating.append(asyncio.create_task(self._beat(presence)))

    async def _beat(self, presence: WorkerPresence) -> None:
        beat = msgspec.json.encode(Beat(presence=presence))
        while True:
            self.js.connection.publish(self.subjects.beat(presence.incarnation), beat)
            await asyncio.sleep(BEAT_S / 10)

    async def stored(self, run: str) -> list[str]:
        """Return the kinds of the run's stored events."""
        return [event.kind async for event in self.client.history(run)]


@asynccontextmanager
async def open_stage(settings: Settings) -> AsyncIterator[Stage]:
    connection = await Connection.open(settings, name="test")
    try:
        js = JetStream(connection)
        subjects = await ensure_topology(js, settings)
        async with Client.connect(settings=settings) as client:
            stage = Stage(client, js, subjects, settings)
            try:
                yield stage
            finally:
                for each in stage.beating:
                    each.cancel()
                await asyncio.gather(*stage.beating, return_exceptions=True)
    finally:
        await connection.close()


def play(settings: Settings, story: Callable[[Stage], Awaitable[None]]) -> None:
    """Play a story on a stage of its own."""

    async def on_stage() -> None:
        async with open_stage(settings) as stage:
            await story(stage)

    asyncio.run(on_stage())


def chain() -> Workflow[Any]:
    """Two steps: a task, then a loop."""
    workflow = Workflow("flow")
    first = workflow.task("first", "work")
    workflow.agent_loop("loop", "think", after=[first], max_iterations=5)
    return workflow


def done(event: str = "", iterations: int = 1, ended_ms: int = 2_000) -> StepEntry:
    return StepEntry("completed", iterations, 1_000, ended_ms, event)


def ended(output: Any) -> Ended:
    return Ended(parent="e1", outcome="completed", iterations=1, output=raw(output))


def task(**fields: Any) -> Task:
    return Task(parent="e1", workflow="flow", definition="", input=NO_INPUT, **fields)


def parked(reason: str, **fields: Any) -> Parked:
    return Parked(parent="e1", task=task(loop=True, **fields), reason=reason, parked_ms=10_000)


def continued(iteration: int, token: int) -> StepContinued:
    return StepContinued(step="loop", type="think", token=token, head=token, iteration=iteration)


def completed(step: str, token: int, output: Any) -> StepCompleted:
    return StepCompleted(step=step, type="work", token=token, head=token, output=raw(output))
