"""What a handler sees of its execution.

    TaskContext[I]          an ``async`` handler of a task
    LoopContext[I]          an ``async`` handler of an agent loop
    SyncTaskContext[I]      a plain function, executed in a thread: checkpoints block
    SyncLoopContext[I]      the same for an agent loop

``I`` is the type of the input. A context is good for one execution and dies with it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, cast, overload

import msgspec

from treadle.sdk import payload
from treadle.sdk.asks import Ask
from treadle.sdk.chunks import Chunk, Progress, Text
from treadle.sdk.errors import HandlerError, InvalidPayload
from treadle.sdk.messages import Failure
from treadle.sdk.spending import Spent
from treadle.sdk.tracing.ids import SAMPLED_SUFFIX
from treadle.sdk.tracing.span import NO_CONTENT, SpanPart
from treadle.worker import waits
from treadle.worker.cancellation import BlockingCancelToken, CancelToken
from treadle.worker.failure import (
    MESSAGE_CHARS_MAX,
    bounded,
    describe,
    is_own_function,
    place_of,
    placed,
)
from treadle.worker.field_logger import FieldLogger
from treadle.worker.mailbox import ReceivedMessage
from treadle.worker.spending import Remaining, least
from treadle.worker.verdict import Complete, Continue, Fail, Wait

if TYPE_CHECKING:
    from treadle.sdk.messages import Checkpoint, MetadataValue
    from treadle.sdk.subjects import RegisterAddress
    from treadle.worker.execution import Call, Record
    from treadle.worker.shared import SharedValues

I = TypeVar("I")  # noqa: E741 — the input's type; a longer name would be read in every handler
T = TypeVar("T")

REASON_CHARS_MAX = 500
"""Of what a step says it waits for, or of what type its failure is: the run's document has it."""

REPORT_BYTES_MAX = 32 * 1024
"""Of one report: it is for people who watch. Data belongs into a checkpoint or an output."""

Budget = Literal["ok", "warn", "force"]
_log = logging.getLogger("treadle.handler")


class CheckpointInfo(msgspec.Struct, frozen=True):
    """Which execution wrote a checkpoint."""

    iteration: int
    attempt: int


class _Context(Generic[I]):
    __slots__ = ("_call", "_logger", "input")

    def __init__(self, call: Call, value: I) -> None:
        self._call = call
        self._logger: FieldLogger | None = None
        self.input: I = value
        """The step's input; in a later iteration, what ``continue_`` was given."""

    @property
    def run(self) -> str:
        """Id of the run."""
        return self._call.address.run

    @property
    def workflow(self) -> str:
        """Name of the workflow."""
        return self._call.task.workflow

    @property
    def step(self) -> str:
        """Id of the step."""
        return self._call.address.step

    @property
    def metadata(self) -> Mapping[str, MetadataValue]:
        """The run's metadata, as it is stored: a time is a text. It does not change."""
        return MappingProxyType(self._call.task.metadata)

    @property
    def step_metadata(self) -> Mapping[str, str]:
        """The ``metadata`` of the step's definition."""
        return MappingProxyType(self._call.task.step_metadata)

    @property
    def iteration(self) -> int:
        """Number of this iteration, from 0."""
        return self._call.task.iteration

    @property
    def index(self) -> int:
        """Of an item of a map: its place in the list, from 0. -1 in any other step."""
        return self._call.index

    @property
    def attempt(self) -> int:
        """Number of this execution of the iteration, from 1: failed and lost ones count."""
        return self._call.task.attempt

    @property
    def losses(self) -> int:
        """How many of the executions before were lost: their worker vanished."""
        return self._call.task.losses

    @property
    def last_failure(self) -> Failure | None:
        """Why the previous attempt of this iteration failed."""
        return self._call.task.last_failure

    @property
    def deadline(self) -> datetime | None:
        """When this execution is cut off: the nearer of ``timeout`` and ``max_duration``."""
        deadline_ms = self._deadline_ms()
        return datetime.fromtimestamp(deadline_ms / 1000, UTC) if deadline_ms else None

    @property
    def remaining_s(self) -> float | None:
        """Seconds until the deadline, never below 0; ``None`` without a deadline."""
        deadline_ms = self._deadline_ms()
        return max(0.0, (deadline_ms - self._call.port.now_ms()) / 1000) if deadline_ms else None

    def now_ms(self) -> int:
        """Return the time in milliseconds since the epoch; in a simulation, the virtual one."""
        return self._call.port.now_ms()

    @property
    def last_checkpoint(self) -> CheckpointInfo | None:
        """Which execution wrote the checkpoint that was loaded or saved last."""
        last = self._call.last_checkpoint
        return None if last is None else CheckpointInfo(last.iteration, last.attempt)

    @property
    def logger(self) -> logging.LoggerAdapter[logging.Logger]:
        """A logger whose records carry run, step, iteration and attempt."""
        if self._logger is None:
            fields = {
                "run": self.run,
                "step": self.step,
                "iteration": self.iteration,
                "attempt": self.attempt,
            }
            self._logger = FieldLogger(_log, fields)
        return self._logger

    def heartbeat(self) -> None:
        """Say that the handler is getting on: the task's time at the server starts anew.

        Not needed to keep a task: the worker's own thread does that for all it holds.
        """
        self._call.port.progress()

    def write(self, text: str) -> None:
        """Say more text, for those who watch the run: ``client.stream``, ``treadle run tail``.

        From any thread; it never waits, and small texts are joined. The text of an attempt that
        is given up is marked superseded.
        """
        if text:
            self._call.say_from_anywhere(Text(text=str(text)))

    def report(self, value: Any) -> None:
        """Say how far the work is, as JSON data, for those who watch the run. See ``write``.

        Raises ``InvalidPayload`` if the value cannot be stored, or is larger than 32 KiB.
        """
        what = f"report of step {self.step!r}"
        raw = payload.encode(what, value)
        if len(raw) > REPORT_BYTES_MAX:
            raise InvalidPayload(
                what,
                f"it is {len(raw)} bytes of JSON, and at most {REPORT_BYTES_MAX} are shown",
                "Report a summary, and keep the data in a checkpoint or the output.",
            )
        self._call.say_from_anywhere(Progress(value=msgspec.Raw(raw)))

    def complete(self, output: Any = None) -> Complete:
        """Return the verdict that ends the step with this output.

        Raises ``InvalidPayload`` if the output cannot be stored.
        """
        verdict = Complete(payload.encode(f"output of step {self.step!r}", output))
        self._call.verdicts.append(verdict)
        return verdict

    def fail(
        self, error: BaseException | str, *, retryable: bool | None = None, type: str = ""
    ) -> Fail:
        """Return the verdict that this attempt failed; the retry policy decides what follows.

        ``retryable`` and ``type`` override what the exception itself says.
        """
        if isinstance(error, BaseException):
            failure = describe(error)
        else:
            failure = Failure(type="failed", message=bounded(error, MESSAGE_CHARS_MAX))
        if retryable is not None:
            failure = msgspec.structs.replace(failure, retryable=retryable)
        if type:
            failure = msgspec.structs.replace(failure, type=bounded(type, REASON_CHARS_MAX))
        raised = error if isinstance(error, BaseException) else None
        # A handler of this package that says why in words has no line of the user's.
        if raised is not None or not is_own_function(self._call.handler.function):
            failure = placed(failure, place_of(raised))
        verdict = Fail(failure)
        self._call.verdicts.append(verdict)
        return verdict

    def _deadline_ms(self) -> int:
        task = self._call.task
        ends = [task.deadline_ms] if task.deadline_ms else []
        if task.timeout_ms:
            ends.append(self._call.started_ms + task.timeout_ms)
        return min(ends, default=0)

    def _state(self, found: Checkpoint | None, type_: Any) -> Any:
        if found is None:
            return None
        return payload.decode(f"checkpoint of step {self.step!r}", found.state, type_)

    def _encode_state(self, state: Any) -> bytes:
        return payload.encode(f"checkpoint of step {self.step!r}", state)


class _Loop:
    """What a loop adds, whichever way its checkpoints are awaited."""

    __slots__ = ()
    _call: Call

    @property
    def max_iterations(self) -> int:
        """Most iterations the loop may take."""
        return self._call.task.max_iterations

    @property
    def remaining_iterations(self) -> int:
        """Iterations that may follow this one."""
        task = self._call.task
        return max(0, task.max_iterations - task.iteration - 1)

    @property
    def budget(self) -> Budget:
        """``warn`` from iteration ``budget_warn_at`` on, ``force`` from ``budget_force_at`` on."""
        task = self._call.task
        if task.budget_force_at and task.iteration >= task.budget_force_at:
            return "force"
        if task.budget_warn_at and task.iteration >= task.budget_warn_at:
            return "warn"
        return "ok"

    @property
    def wrap_up(self) -> str:
        """Name of the bound that was reached, if this is the last, wrapping-up iteration."""
        return self._call.task.wrap_up

    @property
    def spent(self) -> Spent:
        """What the loop has used: its committed iterations, and this one so far."""
        return self._call.task.spent + self._call.spent_now

    @property
    def spent_now(self) -> Spent:
        """What this iteration has used, by all its attempts, as far as they told."""
        return self._call.spent_now

    @property
    def remaining(self) -> Remaining:
        """What may still be used; ``None`` where there is no bound."""
        task = self._call.task
        return least(task.limits, self.spent, task.budgets)

    def report_spent(self, spent: Spent) -> None:
        """Say what this iteration has used so far, all its attempts included.

        A later report replaces the earlier one and lowers nothing, so saying it again counts
        once: report a sum that is kept with the state, or ``ctx.spent_now + Spent(tool_calls=1)``.
        It is told with the verdict; bounds are asked between iterations.
        """
        self._call.report_spent(spent)

    def report_parts(
        self, parts: Sequence[SpanPart], content: Mapping[int, dict[str, str]] = NO_CONTENT
    ) -> None:
        """Say what this iteration did, for its trace: names, numbers and times, with the verdict.

        ``content``, by the number of a part, is left out of a verdict that is too large.
        """
        if self._call.task.trace.endswith(SAMPLED_SUFFIX):
            self._call.parts, self._call.content = tuple(parts), dict(content)

    def wait(
        self,
        reason: str,
        until: datetime | timedelta | None = None,
        state: Any = None,
        asks: Sequence[Ask] = (),
        *,
        counts: bool = True,
        line: str = "",
    ) -> Wait:
        """Return the verdict that ends this iteration and holds the next one back.

        It begins, with ``state`` as its input, when a message to the step comes that this
        execution has not seen, at ``until``, or when someone resumes the run. Meanwhile no worker
        is held, and the time does not count against ``max_duration``. ``asks`` are what people
        find open meanwhile; their answers are messages of kind ``reply``, each a ``Reply``. An
        iteration that does nothing but wait need not count as one of ``max_iterations``. ``line``
        is the key of a provider's budget in whose line the run waits for its turn.
        Raises ``InvalidPayload`` if the state cannot be stored.
        """
        step = self._call.address.step
        if not self._call.task.loop:
            raise HandlerError(
                f"step {step!r} is a task and its handler asked to wait; only an agent loop does. "
                "Define the step with agent_loop(...), or wait in a signal step before it."
            )
        due_ms = waits.due_ms(step, until, self._call.port.now_ms())
        raw = payload.encode(f"state of step {step!r}", state)
        asked = waits.asked(step, asks, self._call.port.now_ms())
        verdict = Wait(raw, bounded(reason, REASON_CHARS_MAX), due_ms, asked, counts, line)
        self._call.verdicts.append(verdict)
        return verdict

    def continue_(self, output: Any = None, delay: float | timedelta | None = None) -> Continue:
        """Return the verdict that asks for another iteration, whose input is ``output``.

        ``delay`` (seconds, or a timedelta) replaces the loop's own ``loop_delay``. Raises
        ``InvalidPayload`` if the output cannot be stored.
        """
        step = self._call.address.step
        if not self._call.task.loop:
            raise HandlerError(
                f"step {step!r} is a task and its handler asked to continue; only an agent loop "
                "iterates. Return ctx.complete(output), or define the step with agent_loop(...)."
            )
        output_raw = payload.encode(f"output of step {step!r}", output)
        verdict = Continue(output_raw, waits.delay_ms(step, delay))
        self._call.verdicts.append(verdict)
        return verdict


class TaskContext(_Context[I]):
    """The execution of a task, for an ``async`` handler."""

    __slots__ = ()

    @property
    def cancelled(self) -> CancelToken:
        """Set when the execution should stop: cancelled, timed out, or fenced off."""
        return cast("CancelToken", self._call.token)

    async def checkpoint(self, state: Any) -> None:
        """Save the state; a later attempt or iteration of the step loads it.

        Raises ``InvalidPayload`` if it cannot be stored, and ``asyncio.CancelledError`` if this
        execution has been overtaken.
        """
        await self._call.save(self._encode_state(state))

    @overload
    async def load_checkpoint(self, type_: type[T]) -> T | None: ...
    @overload
    async def load_checkpoint(self, type_: Any = ...) -> Any: ...
    async def load_checkpoint(self, type_: Any = Any) -> Any:
        """Return the state saved last in this step, decoded into ``type_``, or ``None``."""
        return self._state(await self._call.load(), type_)


class LoopContext(_Loop, TaskContext[I]):
    """One iteration of an agent loop, for an ``async`` handler."""

    __slots__ = ()

    def say(self, chunk: Chunk) -> int:
        """Put a chunk of any kind on the run's output stream; return its number.

        On the event loop only. Neither waits nor raises.
        """
        return self._call.say(chunk)

    async def append_record(self, number: int, body: bytes) -> None:
        """Append JSON to the step's journal: record ``number``, counted from 0 without a gap.

        Stored under the fence, like a checkpoint, and kept with the run. Raises
        ``asyncio.CancelledError`` if this execution has been overtaken.
        """
        await self._call.append_record(number, body)

    async def read_records(self) -> list[Record]:
        """Return the step's journal: all records, in order."""
        return await self._call.read_records()

    @property
    def shared(self) -> SharedValues:
        """The values that all workers share: what is left of a model's provider."""
        return self._call.port.shared

    @property
    def address(self) -> RegisterAddress:
        """Which register this is an execution of."""
        return self._call.address

    @property
    def newest_record(self) -> int:
        """Sequence of the newest record or checkpoint of the step; -1 when it is not known.

        What a worker remembers of a step is good as long as this is what it was.
        """
        return self._call.newest

    async def messages(self, after: int | None = None) -> list[ReceivedMessage]:
        """Return the messages to this step that follow a sequence, oldest first.

        Without ``after``: those that no committed iteration has read. What is returned counts as
        seen. A handler that asks is never ended by ``complete`` over a message it has not seen:
        then there is another iteration, with the output as its input.
        """
        return await self._call.read_messages(after)


class SyncTaskContext(_Context[I]):
    """The execution of a task, for a plain function: it runs in a thread and may block."""

    __slots__ = ()

    @property
    def cancelled(self) -> BlockingCancelToken:
        """Set when the execution should stop. A thread cannot be interrupted: ask for it."""
        return cast("BlockingCancelToken", self._call.token)

    def checkpoint(self, state: Any) -> None:
        """Save the state; a later attempt or iteration of the step loads it.

        Raises ``InvalidPayload`` if it cannot be stored, and ``asyncio.CancelledError`` if this
        execution has been overtaken.
        """
        self._wait(self._call.save(self._encode_state(state)))

    @overload
    def load_checkpoint(self, type_: type[T]) -> T | None: ...
    @overload
    def load_checkpoint(self, type_: Any = ...) -> Any: ...
    def load_checkpoint(self, type_: Any = Any) -> Any:
        """Return the state saved last in this step, decoded into ``type_``, or ``None``."""
        return self._state(self._wait(self._call.load()), type_)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        loop = self._call.loop
        assert loop is not None, "a context exists only while its call runs"
        # Its CancelledError must pass `except Exception` of the handler, so it is translated.
        outcome = asyncio.run_coroutine_threadsafe(_outcome(work), loop).result()
        if isinstance(outcome, asyncio.CancelledError):
            raise outcome
        return cast("T", outcome)


class SyncLoopContext(_Loop, SyncTaskContext[I]):
    """One iteration of an agent loop, for a plain function."""

    __slots__ = ()

    def messages(self, after: int | None = None) -> list[ReceivedMessage]:
        """Return the messages to this step that follow a sequence: see ``LoopContext``."""
        return self._wait(self._call.read_messages(after))


async def _outcome(work: Coroutine[Any, Any, Any]) -> Any:
    try:
        return await work
    except asyncio.CancelledError as exc:
        return exc
