"""A stand for kill -9: a real server and engine, the fake model, and workers as processes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.crash.process import wait_until
from tests.nursery import Forked, agents

from treadle.engine import Engine
from treadle.engine.telemetry.beside import Tracing
from treadle.engine.telemetry.projector import Send
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import FakeAnthropic
from treadle.worker.agent.testing.script import Responder

PATIENCE_S = 60
"""For a process that imports everything on a machine with other work."""


class Stand:
    """A server's namespace with an engine, the fake model, and workers as processes."""

    def __init__(
        self, settings: Settings, fake: FakeAnthropic, directory: Path, client: Client
    ) -> None:
        self.settings = settings
        self.fake = fake
        self.client = client
        self._directory = directory
        self._processes: list[Forked] = []
        self._logs: dict[int, Path] = {}
        self.ledger = directory / "ledger.jsonl"

    def worker(self, failpoints: str = "", module: str = "member", **settings: str) -> Forked:
        """Start a worker: a module of this folder, or one named in full, with these variables."""
        env = {
            "TREADLE_NATS_URL": self.settings.url,
            "TREADLE_NAMESPACE": self.settings.namespace,
            "TREADLE_FAILPOINTS": failpoints,
            "ANTHROPIC_BASE_URL": self.fake.base_url,
            "PAY_LEDGER": str(self.ledger),
            "PAY_NAME": f"worker-{len(self._processes)}",
            **settings,
        }
        log = self._directory / f"worker-{len(self._processes)}.log"
        module = module if "." in module else f"tests.agent.durable.{module}"
        process = agents().start(module, env=env, log=log)
        self._processes.append(process)
        self._logs[process.pid] = log
        return process

    def engine(self, failpoints: str = "") -> Forked:
        """Start an engine: for a stand that has none in this process."""
        name = f"engine-{len(self._processes)}"
        env = {
            "TREADLE_NATS_URL": self.settings.url,
            "TREADLE_NAMESPACE": self.settings.namespace,
            "TREADLE_FAILPOINTS": failpoints,
            "CRASH_NAME": name,
            "CRASH_ACK_WAIT_S": "1.0",
        }
        log = self._directory / f"{name}.log"
        process = agents().start("tests.crash.member", "engine", env=env, log=log)
        self._processes.append(process)
        self._logs[process.pid] = log
        return process

    async def ended(self, process: Forked) -> int:
        """Wait for a process to end."""
        return await asyncio.to_thread(process.wait, PATIENCE_S)

    async def stopped(self, process: Forked) -> None:
        """Wait until a process has stopped itself at a failpoint."""
        await wait_until(f"{process.pid} stops", lambda: process.state == "T", PATIENCE_S)

    async def fenced(self, *processes: Forked) -> None:
        """Wait until one of the processes has been refused what it wanted to store."""

        def is_fenced() -> bool:
            logs = (self._logs[process.pid].read_text() for process in processes)
            return any("reason=fenced" in log for log in logs)

        await wait_until(f"one of {[p.pid for p in processes]} is fenced", is_fenced, PATIENCE_S)

    def close(self) -> None:
        """End the processes."""
        for process in self._processes:
            process.kill()
            process.wait()


@asynccontextmanager
async def stand(
    settings: Settings,
    directory: Path,
    play: Responder,
    export: Send | None = None,
    *,
    serve: bool = True,
    content: bool = False,
) -> AsyncGenerator[Stand]:
    """Set everything up, and take it down.

    ``export`` is where the engine sends spans; without ``serve`` there is no engine. With
    ``content`` they have what was said.
    """
    connection = await Connection.open(settings, name="test")
    await ensure_topology(JetStream(connection), settings)
    await connection.close()
    engine = Engine(settings, tracing=Tracing(export, with_content=content))
    running = asyncio.create_task(engine.run()) if serve else None
    try:
        with FakeAnthropic(play) as fake:
            async with Client.connect(settings=settings) as client:
                made = Stand(settings, fake, directory, client)
                try:
                    yield made
                finally:
                    made.close()
    finally:
        if running is not None:
            engine.stop()
            await running
