"""A stage for crash tests: a server, engines and workers as processes, a client, and the audit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec
from tests.crash import audit
from tests.crash.chain import TASK_TYPE, Baton, seed
from tests.crash.evidence import Evidence, Recorder
from tests.crash.namespace import Namespace
from tests.crash.process import Process, wait_until
from tests.nursery import Nursery

from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, RunHandle, Workflow, WorkflowDefinition
from treadle.sdk.bus.connection import Connection, Message
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.definition import Singleton
from treadle.sdk.messages import Beat
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

ACK_WAIT_S = 1.0
"""Of events and of tasks: short, so that a redelivery is seen within a test."""


def loops(name: str = "chain", *, steps: int = 1, **options: Any) -> WorkflowDefinition:
    """Return a workflow of loops in a row, named ``loop`` or ``loop1``, ``loop2``, ..."""
    workflow = Workflow(name)
    after: list[str] = []
    options.setdefault("max_iterations", 1000)
    for step in step_names(steps):
        workflow.agent_loop(step, TASK_TYPE, after=after, **options)
        after = [step]
    return workflow.build()


def step_names(steps: int) -> tuple[str, ...]:
    """Return the names of the loops of a workflow."""
    return ("loop",) if steps == 1 else tuple(f"loop{number + 1}" for number in range(steps))


class Stage(Namespace):
    """What a test plays on. Processes are named and numbered in the order they start."""

    def __init__(
        self,
        server: NatsServer,
        nursery: Nursery,
        settings: Settings,
        directory: Path,
        js: JetStream,
        recorder: Recorder,
        client: Client,
    ) -> None:
        super().__init__(js, recorder.subjects, client)
        self.server = server
        self.settings = settings
        self.recorder = recorder
        self.processes: list[Process] = []
        self.expected: list[audit.Expected] = []
        self._nursery = nursery
        self._directory = directory
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- processes

    def engine(self, failpoints: str = "") -> Process:
        """Start an engine."""
        return self.process("engine", failpoints)

    def worker(self, failpoints: str = "", *, concurrency: int = 64) -> Process:
        """Start a worker."""
        return self.process("worker", failpoints, concurrency=concurrency)

    def process(
        self, role: str, failpoints: str = "", *, concurrency: int = 64, url: str = ""
    ) -> Process:
        """Start an engine or a worker, through a proxy's URL if one is given."""
        name = f"{role}-{next(self._numbers)}"
        env = {
            "TREADLE_NATS_URL": url or self.settings.url,
            "TREADLE_NAMESPACE": self.settings.namespace,
            "TREADLE_MESSAGE_IDS": "on" if self.settings.message_ids else "off",
            "TREADLE_FAILPOINTS": failpoints,
            "CRASH_NAME": name,
            "CRASH_ACK_WAIT_S": str(ACK_WAIT_S),
            "CRASH_CONCURRENCY": str(concurrency),
            "CRASH_EFFECTS": str(self._directory / "effects.jsonl"),
            "CRASH_GATE": str(self._directory / "gate"),
        }
        process = Process(self._nursery, role, name, env, self._directory / f"{name}.log")
        self.processes.append(process)
        return process

    async def kill_server(self) -> None:
        """Kill the server with -9 and start it again on its store."""
        await asyncio.to_thread(self.server.kill)
        # The server ends with the thread that starts it: never a pool's.
        self.server.restart()

    def open_gate(self, name: str = "") -> None:
        """Let the iterations go on that wait at the gate, or at the one of that name."""
        (self._directory / (f"gate-{name}" if name else "gate")).touch()

    # ---------------------------------------------------------------- runs

    async def start(
        self,
        run: str = "run",
        *,
        workflow: WorkflowDefinition | None = None,
        statuses: tuple[str, ...] = ("completed",),
        lane: str | None = None,
        singleton: Singleton | None = None,
        start_after: float | None = None,
        **baton: Any,
    ) -> RunHandle:
        """Start a run of loops; the audit expects it to end like that."""
        workflow = workflow or loops()
        given = Baton(state=seed(run), **baton)
        steps = tuple(step.id for step in workflow.steps if step.id.startswith("loop"))
        self.expected.append(audit.Expected(run, given.iterations, steps, frozenset(statuses)))
        options: dict[str, Any] = {"lane": lane, "singleton": singleton, "start_after": start_after}
        return await self.client.start(workflow, given, id=run, **options)

    def effects(self) -> list[dict[str, Any]]:
        """Return what the handlers have noted, in order."""
        path = self._directory / "effects.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line) for line in lines]

    async def heard(self, *processes: Process) -> None:
        """Wait for the next sign of life of each: whoever listens knows them from then on."""
        awaited = {process.name for process in processes}

        def hear(message: Message) -> None:
            awaited.discard(msgspec.json.decode(message.data, type=Beat).presence.name)

        beats = await self.js.connection.subscribe(self.subjects.all_beats, hear)
        await wait_until(f"signs of life of {awaited}", lambda: not awaited)
        await beats.unsubscribe()

    async def begun(self, executions: int) -> None:
        """Wait until handlers were called so many times."""

        async def count() -> int:
            return sum(each["kind"] == "begin" for each in self.effects())

        await self.until(f"{executions} executions begin", count, lambda n: n >= executions)

    # ---------------------------------------------------------------- the end

    async def settled(self) -> None:
        """Wait until no redelivery can be under way any more."""
        await self.quiet(ACK_WAIT_S + 0.3)

    async def audit(self) -> Evidence:
        """Compare what was stored with what was expected; fail with every violation."""
        found = await self.recorder.collect()
        broken = audit.violations(found, self.expected)
        assert not broken, "\n".join([*broken, *(f"see {p.log}" for p in self.processes)])
        return found


@asynccontextmanager
async def open_stage(
    server: NatsServer, nursery: Nursery, settings: Settings, directory: Path
) -> AsyncGenerator[Stage]:
    """Set a namespace up and give a stage; end its processes, and audit if the test passed."""
    connection = await Connection.open(settings, name="stage")
    try:
        js = JetStream(connection, message_ids=settings.message_ids)
        subjects = await ensure_topology(js, settings, event_ack_wait_s=ACK_WAIT_S)
        recorder = Recorder(js, subjects)
        await recorder.open()
        async with Client.connect(settings=settings) as client:
            stage = Stage(server, nursery, settings, directory, js, recorder, client)
            try:
                yield stage
                for run in stage.expected:
                    await stage.ended(run.run)
                await stage.audit()
            finally:
                for process in stage.processes:
                    process.kill()
    finally:
        await connection.close()
