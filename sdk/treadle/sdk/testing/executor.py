"""Executions in the simulated world: real handlers, their contexts, and their verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
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
from treadle.sdk.testing.clock import VirtualLoop
from treadle.sdk.wording import Suggestions
from treadle.worker.execution import Call, Record
from treadle.worker.items import perform
from treadle.worker.mailbox import Letters
from treadle.worker.registry import Handler
from treadle.worker.settle import told_by
from treadle.worker.verdict import Complete, Continue, Fail, Stopped, Verdict, Wait

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World


class Executor:
    """Runs the handlers of the tasks that the world gives out."""

    def __init__(self, world: World, handlers: Mapping[str, Handler], loop: VirtualLoop) -> None:
        self._world = world
        self._handlers = handlers
        self._loop = loop
        self._running: set[asyncio.Task[None]] = set()
        self._calls: dict[str, Call] = {}

    @property
    def is_busy(self) -> bool:
        """True while a handler runs or its verdict is on its way."""
        return bool(self._running or self._calls)

    def cancel(self, step_id: str = "") -> None:
        """Stop the handler of a step; of all of them if none is named."""
        for name, call in list(self._calls.items()):
            if step_id in ("", name, step_of(name)):
                call.stop("cancelled")

    def execute(self, step_id: str, task_type: str, token: int, task: Task) -> None:
        """Start the handler of a task; an older execution of the step is fenced off."""
        handler = self._handlers.get(task_type)
        if handler is None:
            near = Suggestions().nearest(task_type, self._handlers)
            raise HandlerError(
                f"step {step_id!r} has task type {task_type!r}, which the worker does not handle "
                f"(it handles {sorted(self._handlers)}). "
                f"{f'Did you mean {near!r}? If not, register' if near else 'Register'} it with "
                "@worker.handler."
            )
        address = RegisterAddress(MAIN_DOMAIN, self._world.run_id, step_id, task_type)
        port = _Port(self._world, self._loop, step_id, token, task)
        call = Call(handler, task, address, port)
        if step_id in self._calls:
            self._calls[step_id].stop("fenced")
        self._calls[step_id] = call
        running = self._loop.create_task(self._run(call, port))
        self._running.add(running)
        running.add_done_callback(self._done)

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
                self._world.check_idle()
                return
        self._world.publish(event)


class _Port:
    """The outside of one simulated execution."""

    def __init__(
        self, world: World, loop: VirtualLoop, step_id: str, token: int, task: Task
    ) -> None:
        self._world = world
        self._loop = loop
        self._step_id = step_id
        self._task = task
        self.token = token
        self.head = token

    def now_ms(self) -> int:
        return self._world.now_ms()

    def progress(self) -> None:
        return

    async def read_input(self, source: FromRun | FromSteps) -> msgspec.Raw:
        raise InvariantError(f"simulated inputs are always inline, not {source!r}")

    async def load_checkpoint(self) -> Checkpoint | None:
        return self._world.beside.load(self._step_id, self._task)

    async def save_checkpoint(self, state: bytes) -> Checkpoint:
        task = self._task
        checkpoint = Checkpoint(
            iteration=task.iteration,
            attempt=task.attempt,
            token=self.token,
            nonce="",
            state=msgspec.Raw(state),
        )
        self.head = self._world.beside.save(self._step_id, self.head, checkpoint)
        return checkpoint

    async def append_record(self, number: int, body: bytes) -> int:
        record = Record(
            token=self.token, iteration=self._task.iteration, nonce="", body=msgspec.Raw(body)
        )
        self.head = self._world.beside.append(self._step_id, self.head, number, record)
        return self.head

    async def read_records(self) -> list[Record]:
        return self._world.beside.records(self._step_id)

    async def read_messages(self, after: int) -> Letters:
        return self._world.letters(self._step_id, after)

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
