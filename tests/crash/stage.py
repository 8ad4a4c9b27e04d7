"""A stage for crash tests: a server, engines and workers as processes, a client, and the audit."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from tests.crash import audit
from tests.crash.chain import TASK_TYPE, Baton, seed
from tests.crash.evidence import Evidence, Recorder
from tests.crash.nursery import Nursery
from tests.crash.process import Process
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, RunHandle, Workflow, WorkflowDefinition
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream, Stored
from treadle.sdk.messages import Ended, Event, Register
from treadle.sdk.run import RunDocument
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import RegisterAddress

ACK_WAIT_S = 1.0
"""Of events and of tasks: short, so that a redelivery is seen within a test."""
END_S = 25.0
"""Longest a test waits for a run's end."""

_register: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
_document = msgspec.json.Decoder(RunDocument)


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


class Stage:
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
        self.server = server
        self.settings = settings
        self.js = js
        self.subjects = recorder.subjects
        self.recorder = recorder
        self.client = client
        self.processes: list[Process] = []
        self.expected: list[audit.Expected] = []
        self._nursery = nursery
        self._directory = directory
        self._numbers = itertools.count(1)

    # ---------------------------------------------------------------- processes

    def engine(self, failpoints: str = "") -> Process:
        """Start an engine."""
        return self._start("engine", failpoints)

    def worker(self, failpoints: str = "", *, concurrency: int = 64) -> Process:
        """Start a worker."""
        return self._start("worker", failpoints, concurrency)

    def _start(self, role: str, failpoints: str, concurrency: int = 0) -> Process:
        name = f"{role}-{next(self._numbers)}"
        env = {
            "TREADLE_NATS_URL": self.settings.url,
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

    def open_gate(self) -> None:
        """Let the iterations go on that wait at the gate."""
        (self._directory / "gate").touch()

    # ---------------------------------------------------------------- runs

    async def start(
        self,
        run: str = "run",
        *,
        workflow: WorkflowDefinition | None = None,
        statuses: tuple[str, ...] = ("completed",),
        **baton: Any,
    ) -> RunHandle:
        """Start a run of loops; the audit expects it to end like that."""
        workflow = workflow or loops()
        given = Baton(state=seed(run), **baton)
        steps = tuple(step.id for step in workflow.steps if step.id.startswith("loop"))
        self.expected.append(audit.Expected(run, given.iterations, steps, frozenset(statuses)))
        return await self.client.start(workflow, given, id=run)

    async def ended(self, run: str = "run", timeout_s: float = END_S) -> RunDocument:
        """Wait for a run's end and return its document."""
        return await self.until(
            f"run {run} ends", lambda: self.document(run), lambda d: d and d.is_terminal, timeout_s
        )

    async def until(
        self,
        what: str,
        read: Callable[[], Any],
        is_it: Callable[[Any], Any],
        timeout_s: float = 15.0,
    ) -> Any:
        """Read until what is read is as wanted, and return it."""
        last: Any = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    last = await read()
                    if is_it(last):
                        return last
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s: {what}; last {last}") from None

    # ---------------------------------------------------------------- what is stored

    async def document(self, run: str = "run") -> RunDocument | None:
        """Return a run's document."""
        stored = await self.js.last(self.subjects.runs_stream, self.subjects.run_document(run))
        return _document.decode(stored.data) if stored else None

    async def register(self, run: str = "run", step: str = "loop") -> tuple[int, Register] | None:
        """Return a step's register and its sequence."""
        stored = await self.js.last(self.subjects.steps_stream, self.register_subject(run, step))
        return (stored.sequence, _register.decode(stored.data)) if stored else None

    def register_subject(self, run: str = "run", step: str = "loop") -> str:
        return self.subjects.register(run, step, TASK_TYPE)

    def address(self, run: str = "run", step: str = "loop") -> RegisterAddress:
        return RegisterAddress("main", run, step, TASK_TYPE)

    async def reached(self, iteration: int, run: str = "run", step: str = "loop") -> None:
        """Wait until the loop has come to an iteration."""

        def is_it(found: tuple[int, Register] | None) -> bool:
            if found is None:
                return False
            register = found[1]
            return isinstance(register, Ended) or audit.task_of(register).iteration >= iteration

        await self.until(
            f"{run} reaches iteration {iteration}", lambda: self.register(run, step), is_it
        )

    async def events(self, run: str = "run") -> list[Stored]:
        """Return a run's stored events."""
        events = self.subjects.events_of_run(run)
        return [stored async for stored in self.js.read(self.subjects.events_stream, events)]

    async def publish(self, event: Event, run: str = "run", message_id: str = "") -> int:
        """Store an event as if a client or a worker had sent it."""
        return await self.js.store(
            self.subjects.event(run), msgspec.json.encode(event), message_id=message_id
        )

    def effects(self) -> list[dict[str, Any]]:
        """Return what the handlers have noted, in order."""
        path = self._directory / "effects.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return [msgspec.json.decode(line) for line in lines]

    async def widen_repeats(self) -> None:
        """Shorten the window in which a repeated message id is recognised to the least there is.

        Once the engines are up: they would refuse a stream that is configured otherwise.
        """
        name = self.subjects.events_stream
        config: dict[str, Any] = (await self.js.api(f"STREAM.INFO.{name}"))["config"]
        config["duplicate_window"] = 100_000_000
        await self.js.api(f"STREAM.UPDATE.{name}", config)

    # ---------------------------------------------------------------- the end

    async def quiet(self, for_s: float = ACK_WAIT_S + 0.3, timeout_s: float = 20.0) -> None:
        """Wait until nothing has been stored for so long: every redelivery has been dealt with."""
        loop = asyncio.get_running_loop()
        last, since = None, loop.time()
        deadline = since + timeout_s
        while loop.time() - since < for_s:
            assert loop.time() < deadline, f"events and registers still move after {timeout_s} s"
            streams = (self.subjects.events_stream, self.subjects.steps_stream)
            found = [
                (await self.js.api(f"STREAM.INFO.{name}"))["state"]["last_seq"] for name in streams
            ]
            if found != last:
                last, since = found, loop.time()
            await asyncio.sleep(0.05)

    async def audit(self) -> Evidence:
        """Compare what was stored with what was expected; fail with every violation."""
        found = await self.recorder.collect()
        broken = audit.violations(found, self.expected)
        assert not broken, "\n".join([*broken, *(f"see {p.log}" for p in self.processes)])
        return found


@asynccontextmanager
async def open_stage(
    server: NatsServer, nursery: Nursery, settings: Settings, directory: Path
) -> AsyncIterator[Stage]:
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
