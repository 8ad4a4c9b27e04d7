"""One execution of a handler: input in, exactly one verdict out.

Knows no NATS and no clock: what it needs of the outside is an ``ExecutionPort``. The worker's
port is in ``port.py``; a test runner brings its own.

    Task --> Call --> context --> handler --> Verdict
                         |
                         +-- checkpoint, load_checkpoint --> port

Whatever the handler does, ``execute`` returns a verdict: an exception of any kind, also
``SystemExit``, is one. The only thing it lets pass is the closing of its own coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Protocol, cast

import msgspec

from treadle.sdk import models, payload
from treadle.sdk.chunks import Chunk
from treadle.sdk.errors import HandlerError, InvalidPayload, ServerUnavailable
from treadle.sdk.messages import Checkpoint, FromRun, FromSteps, Inline, Task
from treadle.sdk.spending import Spent, at_least
from treadle.sdk.subjects import RegisterAddress
from treadle.sdk.tracing.span import SpanPart
from treadle.worker import capture, forking
from treadle.worker.cancellation import AnyCancelToken, BlockingCancelToken, CancelToken
from treadle.worker.failure import describe, place_of, place_of_function, placed
from treadle.worker.mailbox import Letters, ReceivedMessage
from treadle.worker.registry import Handler
from treadle.worker.shared import SharedValues
from treadle.worker.verdict import (
    Complete,
    Continue,
    Fail,
    HandlerVerdict,
    Stopped,
    StopReason,
    Verdict,
    Wait,
)


class Fenced(Exception):
    """The step has moved on, or another execution has saved first: this one must stop."""


class Record(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One record of a step's journal, as it is stored."""

    token: int
    """The fencing token of the execution that wrote it."""
    iteration: int
    attempt: int = 1
    """The attempt of the iteration that wrote it."""
    nonce: str
    """Fresh per write: recognises a write whose acknowledgement was lost."""
    body: msgspec.Raw


class ExecutionPort(Protocol):
    """What an execution needs of the outside. Called on the event loop only."""

    @property
    def shared(self) -> SharedValues:
        """The values that all workers share."""
        ...

    def now_ms(self) -> int:
        """Return the time, in milliseconds since the epoch."""
        ...

    def progress(self) -> None:
        """Note that the handler is alive and getting on."""
        ...

    async def read_input(self, source: FromRun | FromSteps) -> msgspec.Raw:
        """Return an input that the task only refers to."""
        ...

    async def load_checkpoint(self) -> Checkpoint | None:
        """Return the checkpoint that stands; raise ``Fenced`` if the task is stale."""
        ...

    async def save_checkpoint(self, state: bytes) -> Checkpoint:
        """Store a checkpoint and return it; raise ``Fenced`` if it may not be stored."""
        ...

    async def read_messages(self, after: int) -> Letters:
        """Return the messages to the step that follow that sequence."""
        ...

    async def append_record(self, number: int, body: bytes) -> int:
        """Store a record of the step's journal and return its sequence.

        Numbers count from 0. Raise ``Fenced`` if it may not be stored.
        """
        ...

    async def read_records(self) -> list[Record]:
        """Return the whole journal; raise ``Fenced`` if the task is stale."""
        ...

    def say(self, chunk: Chunk) -> int:
        """Put a chunk on the run's output stream; return its number. Neither waits nor raises."""
        ...

    async def run_blocking(self, call: Callable[[], object]) -> object:
        """Run a plain function in a thread that may block, and return what it returns."""
        ...

    def message_bytes_max(self) -> int:
        """Return what the server takes in one message."""
        ...

    def item_begins(self, running: asyncio.Task[Verdict]) -> None:
        """Note that an item of a map begins: its timeout counts from now."""
        ...

    def item_is_over(self) -> None:
        """Note that no item is executed at this moment."""
        ...


class Call:
    """One execution as its context sees it: the task, the way out, and whether to stop."""

    __slots__ = (
        "_checkpoint",
        "_is_closed",
        "_is_loaded",
        "_runner",
        "address",
        "content",
        "handler",
        "index",
        "lines",
        "loop",
        "newest",
        "parts",
        "port",
        "seen",
        "spent_now",
        "started_ms",
        "takes_messages",
        "task",
        "token",
        "verdicts",
    )

    def __init__(
        self,
        handler: Handler,
        task: Task,
        address: RegisterAddress,
        port: ExecutionPort,
        *,
        index: int = -1,
    ) -> None:
        self.handler = handler
        self.task = task
        self.address = address
        self.port = port
        self.index = index
        """Index of the item of a map that it executes; -1 if it is a task of its own."""
        is_thread = handler.is_sync and task.chunk is None
        self.token: AnyCancelToken = BlockingCancelToken() if is_thread else CancelToken()
        self.verdicts: list[HandlerVerdict] = []
        self.newest = task.checkpoint
        """Sequence of the newest record or checkpoint, as far as is known."""
        self.seen = task.seen
        """Sequence of the newest message that was taken note of, in this iteration or before."""
        self.takes_messages = False
        self.spent_now = task.spent_now
        """What this iteration has used, all its attempts together."""
        self.parts: tuple[SpanPart, ...] = ()
        """What this iteration did, for its trace."""
        self.content: dict[int, dict[str, str]] = {}
        """What of it only this process knows, where content is asked for: see ``StepContinued``."""
        self.lines: capture.Lines | None = None
        """What it has logged: made when it first logs."""
        self.started_ms = 0
        self.loop: asyncio.AbstractEventLoop | None = None
        self._runner: asyncio.Task[Any] | None = None
        self._checkpoint: Checkpoint | None = None
        self._is_loaded = False
        self._is_closed = False

    @property
    def last_checkpoint(self) -> Checkpoint | None:
        """The checkpoint that was loaded or saved last."""
        return self._checkpoint

    @property
    def is_closed(self) -> bool:
        """True when the handler has ended, or was abandoned."""
        return self._is_closed

    def begin(self) -> None:
        """Note the start; the running asyncio task is the one that ``stop`` cancels."""
        self.started_ms = self.port.now_ms()
        self.loop = asyncio.get_running_loop()
        self._runner = asyncio.current_task()

    def is_stepped(self) -> bool:
        """Return whether the event loop is running this call's task at this moment.

        It is not while somebody closes its coroutine, which then must end without a verdict.
        """
        try:
            return asyncio.current_task() is self._runner
        except RuntimeError:
            return False

    def close(self) -> None:
        """End the life of the context: nothing can be saved through it any more."""
        self._is_closed = True

    def stop(self, reason: StopReason) -> None:
        """Tell the handler to stop. On the event loop only; the first reason stands."""
        self.token.trip(reason)
        # A thread cannot be cancelled: a plain function reads the token.
        if isinstance(self.token, BlockingCancelToken) or self._is_closed:
            return
        if self._runner is not None and self._runner is not asyncio.current_task():
            self._runner.cancel()

    async def load(self) -> Checkpoint | None:
        """Return the checkpoint that stands: the last one saved here, else the stored one."""
        self._check_open()
        if not self._is_loaded:
            try:
                self._checkpoint = await self.port.load_checkpoint()
            except Fenced as exc:
                self.stop("fenced")
                raise asyncio.CancelledError(str(exc)) from exc
            self._is_loaded = True
        return self._checkpoint

    async def save(self, state: bytes) -> None:
        """Store a checkpoint under the fence."""
        self._check_open()
        try:
            self._checkpoint = await self.port.save_checkpoint(state)
        except Fenced as exc:
            self.stop("fenced")
            raise asyncio.CancelledError(str(exc)) from exc
        self._is_loaded = True

    async def read_messages(self, after: int | None) -> list[ReceivedMessage]:
        """Return the messages that follow that sequence; they count as taken note of."""
        self._check_open()
        self.takes_messages = True
        letters = await self.port.read_messages(self.task.seen if after is None else after)
        self.seen = max(self.seen, letters.read_up_to)
        return letters.messages

    def say(self, chunk: Chunk) -> int:
        """Put a chunk on the run's output stream; return its number."""
        return 0 if self._is_closed else self.port.say(chunk)

    def say_from_anywhere(self, chunk: Chunk) -> None:
        """The same from any thread."""
        loop = self.loop
        assert loop is not None, "a context exists only while its call runs"
        try:
            is_here = asyncio.get_running_loop() is loop
        except RuntimeError:
            is_here = False
        if is_here:
            self.say(chunk)
            return
        try:
            loop.call_soon_threadsafe(self.say, chunk)
        except RuntimeError:
            pass  # The worker has ended.

    def report_spent(self, spent: Spent) -> None:
        """Note what the iteration has used; what was reported before is never lowered."""
        self.spent_now = at_least(self.spent_now, spent)

    async def append_record(self, number: int, body: bytes) -> None:
        """Store a record of the journal under the fence."""
        self._check_open()
        try:
            self.newest = await self.port.append_record(number, body)
        except Fenced as exc:
            self.stop("fenced")
            raise asyncio.CancelledError(str(exc)) from exc

    async def read_records(self) -> list[Record]:
        """Return the journal."""
        self._check_open()
        try:
            return await self.port.read_records()
        except Fenced as exc:
            self.stop("fenced")
            raise asyncio.CancelledError(str(exc)) from exc

    def _check_open(self) -> None:
        self.token.raise_if_set()
        if self._is_closed:
            raise HandlerError(
                f"the context of step {self.address.step!r}"
                f"{f', iteration {self.task.iteration},' if self.task.loop else ''} is used after "
                "its handler returned, and its checkpoint would belong to no execution. Await "
                "everything before the handler returns."
            )


async def execute(
    call: Call, work: Callable[[Call], Awaitable[HandlerVerdict]] | None = None
) -> Verdict:
    """Run the handler, or ``work`` in its stead, and return the one verdict, whatever it does."""
    call.begin()
    capture.current.set(call)
    verdict: Verdict
    try:
        verdict = await (work or _run)(call)
    except ServerUnavailable:
        # NATS was away for longer than every budget: not a failure of the step.
        call.token.trip("lost")
        verdict = Stopped("lost")
    except BaseException as exc:
        forking.end_child(exc)
        if isinstance(exc, GeneratorExit) and not call.is_stepped():
            raise  # The coroutine is being closed: nothing can be awaited any more.
        # Raised around the handler, not in it: its first line is what there is to look at.
        place = place_of(exc) or place_of_function(call.handler.function)
        verdict = Fail(placed(describe(exc), place))
    forking.end_child()
    reason = call.token.reason
    return verdict if reason is None else Stopped(reason)


async def _run(call: Call) -> HandlerVerdict:
    handler, task = call.handler, call.task
    source = task.input
    raw = source.value if isinstance(source, Inline) else await call.port.read_input(source)
    of_item = f"item {call.index} of " if call.index >= 0 else ""
    is_gathered = isinstance(source, FromSteps)
    what = f"{of_item or 'input of '}step {call.address.step!r}"
    value = _decoded(what, raw, handler.input_type, is_gathered=is_gathered)
    context = handler.context(call, value)
    if handler.is_sync:
        returned = await call.port.run_blocking(partial(handler.function, context))
    else:
        returned = await handler.function(context)
    return judge(call, returned)


def _decoded(what: str, raw: msgspec.Raw, input_type: Any, *, is_gathered: bool) -> Any:
    bytes_max = payload.GATHERED_BYTES_MAX if is_gathered else payload.PAYLOAD_BYTES_MAX
    try:
        return payload.decode(what, raw, input_type, bytes_max=bytes_max)
    except InvalidPayload as exc:
        if bytes(raw) != b"null":
            raise
        raise InvalidPayload(
            what,
            f"there is none, and its handler takes {models.name_of(input_type)}: a run that was "
            "started without an input has null, as has a step after one that returned nothing",
            "Start the run with an input (--input), or let the handler's type allow None",
        ) from exc


def judge(call: Call, returned: object) -> HandlerVerdict:
    """Return the one verdict of a handler that returned; raise ``HandlerError`` otherwise."""
    match call.verdicts:
        case []:
            return _plain(call, returned)
        case [verdict] if returned is verdict or returned is None:
            return verdict
        case [verdict]:
            raise _error(
                call,
                f"gave the verdict {_name(verdict)} and returned {type(returned).__name__} too",
                "return ctx.complete(...), ctx.continue_(...) or ctx.fail(...), and nothing else",
            )
        case verdicts:
            raise _error(
                call,
                f"gave {len(verdicts)} verdicts: {', '.join(map(_name, verdicts))}",
                "write `return` before each, so that the handler ends with the first",
            )


def _plain(call: Call, returned: object) -> HandlerVerdict:
    if returned is None and call.task.loop:
        raise _error(
            call,
            f"ended without a verdict in iteration {call.task.iteration} of an agent loop",
            "return ctx.continue_(output) to go on, ctx.complete(output) or a value to end",
        )
    if isinstance(returned, Continue | Wait | Complete | Fail):
        raise _error(
            call,
            f"returned a {_name(returned)} verdict that its own context did not give",
            "return what ctx.complete, ctx.continue_, ctx.wait or ctx.fail of this execution gave",
        )
    if inspect.isawaitable(returned):
        if inspect.iscoroutine(returned):
            cast("Coroutine[Any, Any, Any]", returned).close()
        if call.handler.is_sync:
            what, remedy = "is a plain function but returned", "define it with `async def`"
        else:
            what, remedy = "returned", "await it before you return"
        raise _error(call, f"{what} something to await", remedy)
    what = f"output of handler {call.address.type!r} (step {call.address.step!r})"
    return Complete(payload.encode(what, returned))


def _error(call: Call, what: str, remedy: str) -> HandlerError:
    return HandlerError(
        f"handler {call.address.type!r} of step {call.address.step!r} {what}; an execution has "
        f"exactly one verdict. Instead, {remedy}."
    )


def _name(verdict: HandlerVerdict) -> str:
    match verdict:
        case Continue():
            return "continue_"
        case Wait():
            return "wait"
        case Complete():
            return "complete"
        case Fail():
            return "fail"
