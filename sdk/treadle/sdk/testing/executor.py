"""Executions in the simulated world: real handlers, their contexts, and their verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk.chunks import Chunk
from treadle.sdk.errors import HandlerError, InvariantError
from treadle.sdk.messages import (
    Checkpoint,
    Event,
    Failure,
    FromRun,
    FromSteps,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    Task,
)
from treadle.sdk.payload import MESSAGE_BYTES_LEAST
from treadle.sdk.subjects import MAIN_DOMAIN, RegisterAddress, step_of
from treadle.sdk.testing.boundaries import Boundaries, Side
from treadle.sdk.testing.clock import VirtualLoop
from treadle.sdk.testing.mortal import Process, Workers
from treadle.sdk.wording import Suggestions
from treadle.worker.execution import Call, Record
from treadle.worker.items import perform
from treadle.worker.mailbox import Letters
from treadle.worker.settle import told_by
from treadle.worker.shared import SharedValues
from treadle.worker.verdict import Complete, Continue, Fail, Stopped, Verdict, Wait

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World


class Executor:
    """Runs the handlers of the tasks that the world gives out."""

    def __init__(
        self, world: World, workers: Workers, loop: VirtualLoop, boundaries: Boundaries
    ) -> None:
        self._world = world
        self._workers = workers
        self._loop = loop
        self._boundaries = boundaries
        self._running: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Call] = {}
        self._held: dict[Call, _Port] = {}
        """Executions whose verdict is not stored yet."""

    @property
    def is_busy(self) -> bool:
        """True while a handler runs or its verdict is on its way."""
        return bool(self._running or self._held)

    @property
    def is_twice(self) -> bool:
        """Whether each task has two executions at the same time."""
        return self._boundaries.twice

    def cancel(self, step_id: str = "") -> None:
        """Stop the handler of a step; of all of them if none is named."""
        for name, call in list(self._calls.items()):
            if step_id in ("", name, step_of(name)):
                call.stop("cancelled")

    def lose_all(self) -> None:
        """Report what the worker held, which has died."""
        held, self._held, self._calls = self._held, {}, {}
        self._running.clear()
        for call, port in held.items():
            self._world.lose(call.address, port.token, call.task)

    def execute(self, step_id: str, task_type: str, token: int, task: Task) -> None:
        """Start the handler of a task; an older execution of the step is fenced off."""
        handler = self._workers.handlers.get(task_type)
        if handler is None:
            near = Suggestions().nearest(task_type, self._workers.handlers)
            raise HandlerError(
                f"step {step_id!r} has task type {task_type!r}, which the worker does not handle "
                f"(it handles {sorted(self._workers.handlers)}). "
                f"{f'Did you mean {near!r}? If not, register' if near else 'Register'} it with "
                "@worker.handler."
            )
        address = RegisterAddress(MAIN_DOMAIN, self._world.run_id, step_id, task_type)
        if step_id in self._calls:
            self._calls[step_id].stop("fenced")
        process = self._workers.process
        for _ in range(2 if self.is_twice else 1):
            port = _Port(self, self._world, self._loop, process, address, token, task)
            call = Call(handler, task, address, port)
            self._calls[step_id] = call
            self._held[call] = port
            running = process.start(self._run(call, port))
            self._running.add(running)
            running.add_done_callback(self._done)

    def reach(self, what: str, side: Side) -> bool:
        """Pass a boundary of the worker; true if its process dies there."""
        return self._world.reach(what, "worker", side) == "worker"

    def _done(self, running: asyncio.Task[None]) -> None:
        self._running.discard(running)
        if not running.cancelled() and isinstance(fault := running.exception(), Exception):
            self._world.stop(fault)
        self._world.check_idle()

    async def _run(self, call: Call, port: _Port) -> None:
        timeout_ms = call.task.timeout_ms if call.task.chunk is None else 0
        timer = (
            self._loop.call_later(timeout_ms / 1000, call.stop, "timeout") if timeout_ms else None
        )
        verdict = await perform(call)
        call.close()
        if timer is not None:
            timer.cancel()
        if self._calls.get(call.address.step) is call:
            del self._calls[call.address.step]
        self._loop.call_soon(self._world.call, lambda: self._settle(call, port, verdict))

    def _settle(self, call: Call, port: _Port, verdict: Verdict) -> None:
        if port.process.is_dead:
            return
        task, address = call.task, call.address
        common: dict[str, Any] = {
            "step": address.step,
            "type": address.type,
            "token": port.token,
            "head": port.head,
            "iteration": task.iteration,
            "attempt": task.attempt,
            **told_by(call),
        }
        match verdict:
            case Continue():
                output = msgspec.Raw(verdict.output)
                event: Event = StepContinued(**common, output=output, delay_ms=verdict.delay_ms)
            case Wait():
                output = msgspec.Raw(verdict.output)
                event = StepWaiting(
                    **common,
                    output=output,
                    reason=verdict.reason,
                    due_ms=verdict.due_ms,
                    asks=verdict.asks,
                    uncounted=not verdict.counts,
                    line=verdict.line,
                )
            case Complete():
                output = msgspec.Raw(verdict.output)
                event = StepCompleted(**common, output=output, chunk=verdict.chunk)
            case Fail():
                event = StepFailed(**common, failure=verdict.failure)
            case Stopped(reason="timeout"):
                text = f"the attempt ran longer than its timeout of {task.timeout_ms / 1000:g} s"
                event = StepFailed(**common, failure=Failure("timeout", text))
            case Stopped():
                self._held.pop(call, None)
                self._world.check_idle()
                return
        what = f"verdict of step {address.step!r}"
        if self.reach(what, "before"):
            return
        self._world.publish(event, by_worker=what)
        self._held.pop(call, None)
        self._world.check_idle()


class _Port:
    """The outside of one simulated execution."""

    def __init__(
        self,
        executor: Executor,
        world: World,
        loop: VirtualLoop,
        process: Process,
        address: RegisterAddress,
        token: int,
        task: Task,
    ) -> None:
        self._executor = executor
        self._world = world
        self._loop = loop
        self.process = process
        self._step_id = address.step
        self._task = task
        self.token = token
        self.head = token

    @property
    def shared(self) -> SharedValues:
        return self._world.family.shared

    def now_ms(self) -> int:
        return self._world.now_ms()

    def progress(self) -> None:
        return

    async def read_input(self, source: FromRun | FromSteps) -> msgspec.Raw:
        raise InvariantError(f"simulated inputs are always inline, not {source!r}")

    async def load_checkpoint(self) -> Checkpoint | None:
        found = self._world.beside.load(self._step_id, self._task)
        await self._take_turns()
        return found

    async def save_checkpoint(self, state: bytes) -> Checkpoint:
        task = self._task
        checkpoint = Checkpoint(
            iteration=task.iteration,
            attempt=task.attempt,
            token=self.token,
            nonce="",
            state=msgspec.Raw(state),
        )
        what = f"checkpoint of step {self._step_id!r}"
        await self._reach(what, "before")
        self.head = self._world.beside.save(self._step_id, self.head, checkpoint)
        await self._reach(what, "after")
        return checkpoint

    async def append_record(self, number: int, body: bytes) -> int:
        record = Record(
            token=self.token, iteration=self._task.iteration, nonce="", body=msgspec.Raw(body)
        )
        what = f"journal record {number} of step {self._step_id!r}"
        await self._reach(what, "before")
        self.head = self._world.beside.append(self._step_id, self.head, number, record)
        await self._reach(what, "after")
        return self.head

    async def _take_turns(self) -> None:
        """Let the other execution of the task read, too, before one of them writes."""
        if self._executor.is_twice:
            await asyncio.sleep(0)

    async def _reach(self, what: str, side: Side) -> None:
        if self.process.is_dead or self._executor.reach(what, side):
            await self.process.end_here()

    async def read_records(self) -> list[Record]:
        found = self._world.beside.records(self._step_id)
        await self._take_turns()
        return found

    async def read_messages(self, after: int) -> Letters:
        found = self._world.letters(self._step_id, after)
        await self._take_turns()
        return found

    def say(self, chunk: Chunk) -> int:
        task = self._task
        n = len(self._world.said)
        placed = msgspec.structs.replace(chunk, iteration=task.iteration, attempt=task.attempt, n=n)
        self._world.said.append((self._step_id, placed))
        return n

    def message_bytes_max(self) -> int:
        return MESSAGE_BYTES_LEAST

    def item_begins(self, running: asyncio.Task[Verdict]) -> None:
        return

    def item_is_over(self) -> None:
        return

    async def run_blocking(self, call: Callable[[], object]) -> object:
        return await self._loop.run_blocking(call)
