"""The engine's side of the stage, by hand: streams, registers put by the test, events that come.

No engine runs, so a test decides what stands in a register and sees exactly what a worker says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, TypeVar

import msgspec

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import ApiError, JetStream, Refused, Stored
from treadle.sdk.bus.wire import Message
from treadle.sdk.messages import (
    Beat,
    CancelNotice,
    Checkpoint,
    Event,
    Inline,
    Register,
    StepCompleted,
    StepContinued,
    StepFailed,
    Task,
    TaskDue,
    TaskLost,
)
from treadle.sdk.namespace import NamespaceRecord
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker import Worker

E = TypeVar("E", bound=Event)
T = TypeVar("T")

WAIT_S = 10.0
POLL_S = 0.01
_STREAM: dict[str, Any] = {
    "storage": "file",
    "retention": "limits",
    "discard": "new",
    "allow_direct": True,
    "allow_rollup_hdrs": False,
    "duplicate_window": 2_000_000_000,
}

settled = (StepContinued, StepCompleted, StepFailed, TaskLost, TaskDue)


def task(value: object = None, **fields: Any) -> Task:
    """Return a task with this input."""
    fields.setdefault("parent", "e1")
    fields.setdefault("workflow", "flow")
    fields.setdefault("definition", "0" * 16)
    return Task(input=Inline(msgspec.Raw(msgspec.json.encode(value))), **fields)


def loop_task(value: object = None, **fields: Any) -> Task:
    """Return an iteration of an agent loop of at most ten."""
    fields.setdefault("max_iterations", 10)
    return task(value, loop=True, **fields)


class Stage:
    """Streams of one namespace, and what the engine would do with them."""

    def __init__(self, settings: Settings, connection: Connection) -> None:
        self.settings = settings
        self.connection = connection
        self.js = JetStream(connection)
        self.subjects = Subjects(settings.namespace)
        self.beats: list[Beat] = []

    async def set_up(self) -> None:
        s = self.subjects
        bucket = {**_STREAM, "max_msgs_per_subject": 1}
        age = {"max_age": 30_000_000_000}
        for name, subject, config in (
            (s.events_stream, s.all_events, _STREAM),
            (s.steps_stream, s.all_steps, bucket),
            (s.workers_stream, s.all_workers, {**bucket, **age}),
            (s.workflows_stream, s.all_workflows, bucket),
        ):
            await self.js.ensure_stream({**config, "name": name, "subjects": [subject]})
        await self.js.store(s.settings(), msgspec.json.encode(NamespaceRecord()))
        await self.connection.subscribe(s.all_beats, self._hear)

    def _hear(self, message: Message) -> None:
        self.beats.append(msgspec.json.decode(message.data, type=Beat))

    async def put(
        self, register: Register, *, run: str = "r1", step: str = "s", type_: str = "work"
    ) -> int:
        """Store a register value, whatever stands; return its sequence."""
        return await self.js.store(
            self.subjects.register(run, step, type_), msgspec.json.encode(register)
        )

    async def put_checkpoint(
        self, state: object, *, expected: int, run: str = "r1", step: str = "s", **fields: Any
    ) -> int:
        """Store a checkpoint as another worker would; return its sequence."""
        fields = {"iteration": 0, "attempt": 1, "token": expected, "nonce": "other", **fields}
        raw = msgspec.Raw(msgspec.json.encode(state))
        answer = await self.js.attempt(
            self.subjects.checkpoint(run, step),
            msgspec.json.encode(Checkpoint(state=raw, **fields)),
            expected=expected,
            filter=self.subjects.pair(run, step),
        )
        assert not isinstance(answer, Refused)
        return answer

    async def checkpoint(self, run: str = "r1", step: str = "s") -> tuple[Stored, Checkpoint]:
        """Return the checkpoint that stands."""
        stored = await self.js.last(self.subjects.steps_stream, self.subjects.checkpoint(run, step))
        assert stored is not None
        return stored, msgspec.json.decode(stored.data, type=Checkpoint)

    async def cancel(self, run: str = "r1", step: str = "") -> None:
        """Tell the workers what the engine tells them after a cancel."""
        notice = CancelNotice(run=run, step=step)
        self.connection.publish(self.subjects.cancel(run), msgspec.json.encode(notice))
        await self.connection.flush()

    async def events(self, run: str = "r1") -> list[Event]:
        """Return all events of a run."""
        found = self.js.read(self.subjects.events_stream, self.subjects.events_of_run(run))
        return [msgspec.json.decode(stored.data, type=Event) async for stored in found]

    async def event(self, kind: type[E], run: str = "r1", n: int = 1) -> E:
        """Wait for the n-th event of a run; it must be of this kind."""
        found = await until(lambda: self.events(run), lambda events: len(events) >= n)
        last = found[n - 1]
        assert isinstance(last, kind), last
        return last

    async def consumer(self, type_: str = "work") -> dict[str, Any]:
        """Return the state of the workers' consumer."""
        name = self.subjects.worker_consumer(type_)
        return await self.js.api(f"CONSUMER.INFO.{self.subjects.steps_stream}.{name}")

    async def _has_consumer(self, type_: str) -> bool:
        try:
            await self.consumer(type_)
        except ApiError:
            return False
        return True

    async def until_acked(self, type_: str = "work") -> None:
        """Wait until no delivery is outstanding."""
        await until(lambda: self.consumer(type_), lambda info: info["num_ack_pending"] == 0)

    @asynccontextmanager
    async def running(self, worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
        """Run the worker; drain it at the end."""
        heard = len(self.beats)
        run = asyncio.create_task(worker.run(self.settings))
        try:
            await until(lambda: _soon(len(self.beats) > heard or run.done()), bool)
            for type_ in worker.handlers:
                await until(partial(self._has_consumer, type_), bool)
            yield run
        finally:
            worker.stop()
            await run


@asynccontextmanager
async def open_stage(settings: Settings) -> AsyncIterator[Stage]:
    connection = await Connection.open(settings, name="stage")
    try:
        stage = Stage(settings, connection)
        await stage.set_up()
        yield stage
    finally:
        await connection.close()


async def until(
    look: Callable[[], Any], is_it: Callable[[Any], bool], timeout_s: float = WAIT_S
) -> Any:
    """Look again and again until it is so; return what was seen."""
    give_up_s = time.monotonic() + timeout_s
    while True:
        seen = await look()
        if is_it(seen):
            return seen
        assert time.monotonic() < give_up_s, f"not within {timeout_s} s; last seen: {seen!r}"
        await asyncio.sleep(POLL_S)


async def until_true(is_it: Callable[[], bool], timeout_s: float = WAIT_S) -> None:
    """Wait for a condition of this process."""
    await until(lambda: _soon(is_it()), bool, timeout_s)


async def _soon(value: T) -> T:
    return value
