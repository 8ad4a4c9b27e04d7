"""What a test reads of a namespace and writes to it by hand, past the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, TypeVar

import msgspec
from tests.crash.chain import TASK_TYPE

from treadle.sdk import Client
from treadle.sdk.bus.jetstream import JetStream, Stored
from treadle.sdk.messages import (
    DeadLetter,
    Delayed,
    Ended,
    Event,
    Parked,
    Queued,
    Register,
    Sleeping,
    Task,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

T = TypeVar("T")

END_S = 25.0
"""Longest a test waits for a run's end."""
_WAIT_S = 15.0
_POLL_S = 0.01

_register: msgspec.json.Decoder[Register] = msgspec.json.Decoder(Register)
_document = msgspec.json.Decoder(RunDocument)
_letter = msgspec.json.Decoder(DeadLetter)


class Standing(NamedTuple):
    """A register as it stands: its sequence is the token."""

    token: int
    register: Register


def task_of(register: Register) -> Task:
    """Return the task of a register that has not ended."""
    match register:
        case Task():
            return register
        case Queued() | Delayed() | Sleeping() | Parked():
            return register.task
        case Ended():
            raise AssertionError(register)


class Namespace:
    """One namespace of a server."""

    def __init__(self, js: JetStream, subjects: Subjects, client: Client) -> None:
        self.js = js
        self.subjects = subjects
        self.client = client

    async def until(
        self,
        what: str,
        read: Callable[[], Awaitable[T]],
        is_it: Callable[[T], bool],
        timeout_s: float = _WAIT_S,
    ) -> T:
        """Read until what is read is as wanted, and return it."""
        last: T | None = None
        try:
            async with asyncio.timeout(timeout_s):
                while True:
                    last = await read()
                    if is_it(last):
                        return last
                    await asyncio.sleep(_POLL_S)
        except TimeoutError:
            raise AssertionError(f"not within {timeout_s} s: {what}; last {last}") from None

    # ---------------------------------------------------------------- runs

    async def document(self, run: str = "run") -> RunDocument | None:
        """Return a run's document."""
        stored = await self.js.last(self.subjects.runs_stream, self.subjects.run_document(run))
        return _document.decode(stored.data) if stored else None

    async def ended(self, run: str = "run", timeout_s: float = END_S) -> RunDocument:
        """Wait for a run's end and return its document."""
        return await self.status(run, "completed", "failed", "cancelled", timeout_s=timeout_s)

    async def status(self, run: str, *statuses: str, timeout_s: float = _WAIT_S) -> RunDocument:
        """Wait until a run's document has one of these statuses, and return it."""

        def is_it(document: RunDocument | None) -> bool:
            return document is not None and document.status in statuses

        found = await self.until(
            f"run {run} is {statuses}", lambda: self.document(run), is_it, timeout_s
        )
        assert found is not None
        return found

    # ---------------------------------------------------------------- registers

    def register_subject(self, run: str = "run", step: str = "loop", type: str = TASK_TYPE) -> str:
        return self.subjects.register(run, step, type)

    async def register(
        self, run: str = "run", step: str = "loop", type: str = TASK_TYPE
    ) -> Standing | None:
        """Return a step's register; None if it does not exist."""
        subject = self.register_subject(run, step, type)
        stored = await self.js.last(self.subjects.steps_stream, subject)
        return Standing(stored.sequence, _register.decode(stored.data)) if stored else None

    async def holds(
        self,
        kind: type[Register],
        run: str = "run",
        step: str = "loop",
        type: str = TASK_TYPE,
        *,
        since: int = 0,
    ) -> Standing:
        """Wait until a register holds a value of a kind, newer than ``since``; return it."""

        def is_it(found: Standing | None) -> bool:
            return found is not None and found.token > since and isinstance(found.register, kind)

        found = await self.until(
            f"{run}.{step} holds {kind}", lambda: self.register(run, step, type), is_it
        )
        assert found is not None
        return found

    async def reached(self, iteration: int, run: str = "run", step: str = "loop") -> None:
        """Wait until the loop has come to an iteration."""

        def is_it(found: Standing | None) -> bool:
            if found is None:
                return False
            register = found.register
            return isinstance(register, Ended) or task_of(register).iteration >= iteration

        await self.until(
            f"{run} reaches iteration {iteration}", lambda: self.register(run, step), is_it
        )

    # ---------------------------------------------------------------- events, dead letters

    async def events(self, run: str = "run") -> list[Stored]:
        """Return a run's stored events."""
        events = self.subjects.events_of_run(run)
        return [stored async for stored in self.js.read(self.subjects.events_stream, events)]

    async def publish(self, event: Event | bytes, run: str = "run", message_id: str = "") -> int:
        """Store an event as if a client or a worker had sent it."""
        data = event if isinstance(event, bytes) else msgspec.json.encode(event)
        return await self.js.store(self.subjects.event(run), data, message_id=message_id)

    async def letters(self) -> list[DeadLetter]:
        """Return every dead letter."""
        found = self.js.read(self.subjects.dead_stream, self.subjects.all_letters)
        return [_letter.decode(stored.data) async for stored in found]

    async def letter(self, run: str) -> DeadLetter:
        """Wait for a dead letter of a run, and return it."""

        async def read() -> DeadLetter | None:
            return next((each for each in await self.letters() if each.run == run), None)

        found = await self.until(f"a dead letter of {run}", read, lambda it: it is not None)
        assert found is not None
        return found

    # ---------------------------------------------------------------- streams

    async def state(self, stream: str) -> dict[str, Any]:
        """Return what the server says of a stream's messages."""
        state: dict[str, Any] = (await self.js.api(f"STREAM.INFO.{stream}"))["state"]
        return state

    async def quiet(self, for_s: float, timeout_s: float = 20.0) -> None:
        """Wait until nothing has been stored for so long: every redelivery has been dealt with."""
        loop = asyncio.get_running_loop()
        last, since = None, loop.time()
        deadline = since + timeout_s
        s = self.subjects
        while loop.time() - since < for_s:
            assert loop.time() < deadline, f"something is still stored after {timeout_s} s"
            streams = (s.events_stream, s.steps_stream, s.runs_stream)
            found = [(await self.state(name))["last_seq"] for name in streams]
            if found != last:
                last, since = found, loop.time()
            await asyncio.sleep(_POLL_S * 4)

    async def widen_repeats(self) -> None:
        """Shorten the window in which a repeated message id is recognised to the least there is.

        Once the engines are up: they would refuse a stream that is configured otherwise.
        """
        name = self.subjects.events_stream
        config: dict[str, Any] = (await self.js.api(f"STREAM.INFO.{name}"))["config"]
        config["duplicate_window"] = 100_000_000
        await self.js.api(f"STREAM.UPDATE.{name}", config)
