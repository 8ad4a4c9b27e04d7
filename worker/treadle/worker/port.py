"""What the worker gives an execution: the port of one held task."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from treadle.sdk.chunks import Chunk
from treadle.sdk.messages import Checkpoint, FromRun, FromSteps
from treadle.worker.checkpoints import CheckpointStore
from treadle.worker.execution import Fenced, Record
from treadle.worker.held import HeldTask
from treadle.worker.inputs import InputReader
from treadle.worker.journals import JournalStore
from treadle.worker.mailbox import Letters, Mailbox
from treadle.worker.output import OutputStream
from treadle.worker.shared import SharedValues
from treadle.worker.threads import BlockingPool
from treadle.worker.verdict import Verdict


class Services:
    """What all executions of a worker share."""

    __slots__ = (
        "checkpoints",
        "inputs",
        "journals",
        "mailbox",
        "on_fenced",
        "output",
        "pool",
        "shared",
    )

    def __init__(
        self,
        checkpoints: CheckpointStore,
        inputs: InputReader,
        journals: JournalStore,
        mailbox: Mailbox,
        output: OutputStream,
        pool: BlockingPool,
        shared: SharedValues,
    ) -> None:
        self.checkpoints = checkpoints
        self.inputs = inputs
        self.journals = journals
        self.mailbox = mailbox
        self.output = output
        self.pool = pool
        self.shared = shared
        self.on_fenced: Callable[[HeldTask], None] = lambda _: None
        """Called for an execution that may not go on."""


class HeldPort:
    """The ``ExecutionPort`` of one held task."""

    __slots__ = ("_held", "_services")

    def __init__(self, services: Services, held: HeldTask) -> None:
        self._services = services
        self._held = held

    @property
    def shared(self) -> SharedValues:
        return self._services.shared

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def progress(self) -> None:
        self._held.progress_s = time.monotonic()
        # Due at once: the heartbeat thread tells the server at its next tick.
        self._held.touched_s = 0.0

    async def read_input(self, source: FromRun | FromSteps) -> msgspec.Raw:
        return await self._services.inputs.read(source, self._held.address)

    async def load_checkpoint(self) -> Checkpoint | None:
        try:
            return await self._services.checkpoints.load(self._held)
        except Fenced:
            self._services.on_fenced(self._held)
            raise

    async def save_checkpoint(self, state: bytes) -> Checkpoint:
        try:
            return await self._services.checkpoints.save(self._held, state)
        except Fenced:
            self._services.on_fenced(self._held)
            raise

    async def read_messages(self, after: int) -> Letters:
        return await self._services.mailbox.read(self._held.address, after)

    def say(self, chunk: Chunk) -> int:
        held = self._held
        if held.voice is None:
            held.voice = self._services.output.voice(held.address, held.task)
        return held.voice.say(chunk)

    async def append_record(self, number: int, body: bytes) -> int:
        try:
            return await self._services.journals.append(self._held, number, body)
        except Fenced:
            self._services.on_fenced(self._held)
            raise

    async def read_records(self) -> list[Record]:
        try:
            return await self._services.journals.read(self._held)
        except Fenced:
            self._services.on_fenced(self._held)
            raise

    def message_bytes_max(self) -> int:
        return self._services.output.js.connection.max_payload_bytes

    def item_begins(self, running: asyncio.Task[Verdict]) -> None:
        self._held.item = running
        self._held.timed_s = time.monotonic()

    def item_is_over(self) -> None:
        self._held.item = None
        self._held.timed_s = 0.0

    async def run_blocking(self, call: Callable[[], object]) -> object:
        return await self._services.pool.run(call)
