"""One execution, exactly one verdict: what a handler returns, forgets, or says twice.
Method: execute handlers in memory, with a port that is a few lines; no server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.worker.stage import loop_task, task

from treadle.sdk.errors import HandlerError, ServerUnavailable
from treadle.sdk.messages import Checkpoint, FromRun, FromSteps, Task
from treadle.sdk.subjects import RegisterAddress
from treadle.worker import (
    CheckpointInfo,
    LoopContext,
    ReceivedMessage,
    SyncLoopContext,
    SyncTaskContext,
    TaskContext,
)
from treadle.worker.execution import Call, Fenced, Record, execute
from treadle.worker.mailbox import Letters
from treadle.worker.registry import Registry
from treadle.worker.shared import SharedValues
from treadle.worker.verdict import Complete, Continue, Fail, Stopped, Verdict

NOW_MS = 1_800_000_000_000


class MemoryPort:
    """A port that keeps one checkpoint in memory."""

    def __init__(self) -> None:
        self.kept: Checkpoint | None = None
        self.saves = 0
        self.loads = 0
        self.progressed = 0
        self.trouble: Exception | None = None
        self.sent: list[ReceivedMessage] = []

    def now_ms(self) -> int:
        return NOW_MS

    def progress(self) -> None:
        self.progressed += 1

    @property
    def shared(self) -> SharedValues:
        raise NotImplementedError

    async def read_input(self, source: FromRun | FromSteps) -> msgspec.Raw:
        return msgspec.Raw(b'"from afar"')

    async def load_checkpoint(self) -> Checkpoint | None:
        self.loads += 1
        if self.trouble is not None:
            raise self.trouble
        return self.kept

    async def save_checkpoint(self, state: bytes) -> Checkpoint:
        if self.trouble is not None:
            raise self.trouble
        self.saves += 1
        self.kept = Checkpoint(
            iteration=0, attempt=1, token=1, nonce=str(self.saves), state=msgspec.Raw(state)
        )
        return self.kept

    async def append_record(self, number: int, body: bytes) -> int:
        raise NotImplementedError

    async def read_records(self) -> list[Record]:
        raise NotImplementedError

    async def read_messages(self, after: int) -> Letters:
        found = [message for message in self.sent if message.sequence > after]
        return Letters(found, max([after, *(message.sequence for message in self.sent)]))

    async def run_blocking(self, call: Callable[[], object]) -> object:
        return await asyncio.to_thread(call)


def call_of(
    function: Callable[[Any], Any], of: Task | None = None, port: MemoryPort | None = None
) -> Call:
    handler = Registry().add("work", function)
    address = RegisterAddress("main", "r1", "s", "work")
    return Call(handler, of or task(), address, port or MemoryPort())


def verdict_of(
    function: Callable[[Any], Any], of: Task | None = None, port: MemoryPort | None = None
) -> Verdict:
    return asyncio.run(execute(call_of(function, of, port)))


def failed_with(verdict: Verdict, *texts: str) -> None:
    assert isinstance(verdict, Fail), verdict
    assert verdict.failure.type == "HandlerError"
    assert not verdict.failure.retryable
    for text in texts:
        assert text in verdict.failure.message


# ------------------------------------------------------------------ one verdict


@dataclass
class Point:
    x: int


@pytest.mark.parametrize(
    ("value", "output"), [(None, b"null"), (0, b"0"), ([], b"[]"), (Point(1), b'{"x":1}')]
)
def test_a_plain_return_completes_a_task(value: object, output: bytes) -> None:
    async def handler(ctx: TaskContext[Any]) -> object:
        return value

    assert verdict_of(handler) == Complete(output)


def test_a_plain_return_completes_a_loop_too_but_nothing_is_an_error() -> None:
    async def value(ctx: LoopContext[Any]) -> int:
        return 7

    async def nothing(ctx: LoopContext[Any]) -> None: ...

    assert verdict_of(value, loop_task()) == Complete(b"7")
    failed_with(
        verdict_of(nothing, loop_task(iteration=4)),
        "without a verdict in iteration 4",
        "ctx.continue_(output)",
    )


def test_each_verdict_of_the_context_is_what_comes_out() -> None:
    async def complete(ctx: LoopContext[Any]) -> Any:
        return ctx.complete({"a": 1})

    async def go_on(ctx: LoopContext[Any]) -> Any:
        return ctx.continue_([1], delay=timedelta(seconds=2))

    async def fail(ctx: LoopContext[Any]) -> Any:
        return ctx.fail("quota", retryable=False)

    assert verdict_of(complete, loop_task()) == Complete(b'{"a":1}')
    assert verdict_of(go_on, loop_task()) == Continue(b"[1]", 2000)
    failure = verdict_of(fail, loop_task())
    assert isinstance(failure, Fail)
    assert (failure.failure.type, failure.failure.message) == ("failed", "quota")
    assert not failure.failure.retryable


def test_a_verdict_counts_when_the_handler_returns_nothing_after_it() -> None:
    async def handler(ctx: LoopContext[Any]) -> None:
        ctx.continue_(1)

    assert verdict_of(handler, loop_task()) == Continue(b"1")


def test_two_verdicts_are_an_error_that_names_both() -> None:
    async def twice(ctx: LoopContext[Any]) -> Any:
        ctx.complete(1)
        return ctx.continue_(2)

    async def and_a_value(ctx: LoopContext[Any]) -> Any:
        ctx.complete(1)
        return 2

    failed_with(verdict_of(twice, loop_task()), "2 verdicts: complete, continue_", "`return`")
    failed_with(verdict_of(and_a_value, loop_task()), "verdict complete and returned int")


def test_an_exception_after_a_verdict_is_the_verdict() -> None:
    async def handler(ctx: TaskContext[Any]) -> None:
        ctx.complete(1)
        raise ValueError("after all")

    verdict = verdict_of(handler)
    assert isinstance(verdict, Fail) and verdict.failure.message == "after all"


def test_a_verdict_of_another_execution_is_refused() -> None:
    async def handler(ctx: TaskContext[Any]) -> Any:
        return Complete(b"1")

    failed_with(verdict_of(handler), "its own context did not give")


def test_a_task_cannot_continue() -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        return ctx.continue_(1)

    failed_with(verdict_of(handler, task()), "step 's' is a task", "agent_loop")


@pytest.mark.parametrize("delay", [-1, float("nan"), float("inf"), 1e12])
def test_a_delay_that_makes_no_sense_is_refused(delay: float) -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        return ctx.continue_(1, delay=delay)

    failed_with(verdict_of(handler, loop_task()), "with a delay of")


def test_a_plain_function_that_returns_a_coroutine_is_told_to_be_async() -> None:
    async def inner() -> None: ...

    failed_with(verdict_of(lambda ctx: inner()), "define it with `async def`")


# ------------------------------------------------------------------ bad values


@pytest.mark.parametrize("value", [object(), float("nan"), {"deep": {1: {2}}, "f": lambda: 1}])
def test_what_cannot_be_stored_is_refused_and_named(value: object) -> None:
    async def plain(ctx: TaskContext[Any]) -> object:
        return value

    async def checkpoint(ctx: TaskContext[Any]) -> None:
        await ctx.checkpoint(value)

    for handler, what in ((plain, "output of handler 'work'"), (checkpoint, "checkpoint of")):
        verdict = verdict_of(handler)
        assert isinstance(verdict, Fail)
        assert verdict.failure.type == "InvalidPayload" and not verdict.failure.retryable
        assert what in verdict.failure.message


def test_an_input_of_another_shape_is_refused_without_calling_the_handler() -> None:
    async def handler(ctx: TaskContext[Point]) -> None:
        raise AssertionError("must not be called")

    verdict = verdict_of(handler, task({"x": "one"}))
    assert isinstance(verdict, Fail)
    assert verdict.failure.type == "InvalidPayload" and not verdict.failure.retryable
    assert "input of step 's'" in verdict.failure.message


def test_an_input_that_is_only_referred_to_is_read() -> None:
    async def handler(ctx: TaskContext[str]) -> str:
        return ctx.input

    far = msgspec.structs.replace(task(), input=FromRun(3))
    assert verdict_of(handler, far) == Complete(b'"from afar"')


def test_an_exception_whose_text_cannot_be_read_still_is_a_failure() -> None:
    class Broken(Exception):
        def __str__(self) -> str:
            raise ValueError

    async def broken(ctx: TaskContext[Any]) -> None:
        raise Broken

    async def surrogate(ctx: TaskContext[Any]) -> None:
        raise ValueError("half \ud800 " + "x" * 100_000)

    verdict = verdict_of(broken)
    assert isinstance(verdict, Fail) and "cannot be read" in verdict.failure.message
    verdict = verdict_of(surrogate)
    assert isinstance(verdict, Fail)
    assert verdict.failure.message.startswith("half ? x") and len(verdict.failure.message) <= 2000
    msgspec.json.encode(verdict.failure)


# ------------------------------------------------------------------ checkpoints


def test_a_saved_checkpoint_is_what_a_load_returns_without_reading() -> None:
    port = MemoryPort()

    async def handler(ctx: TaskContext[Any]) -> Any:
        assert await ctx.load_checkpoint(list) is None
        assert ctx.last_checkpoint is None
        await ctx.checkpoint([1, 2])
        loaded = await ctx.load_checkpoint(list[int])
        return [loaded, ctx.last_checkpoint == CheckpointInfo(0, 1)]

    assert verdict_of(handler, port=port) == Complete(b"[[1,2],true]")
    assert (port.loads, port.saves) == (1, 1)


def test_a_plain_function_checkpoints_without_await() -> None:
    port = MemoryPort()

    def handler(ctx: SyncLoopContext[Any]) -> Any:
        history = ctx.load_checkpoint(list) or []
        ctx.checkpoint([*history, ctx.iteration])
        return ctx.continue_(ctx.load_checkpoint())

    assert verdict_of(handler, loop_task(iteration=1), port) == Continue(b"[1]")


def test_a_fenced_execution_is_stopped_whatever_its_handler_makes_of_it() -> None:
    async def lets_it_pass(ctx: TaskContext[Any]) -> None:
        await ctx.checkpoint(1)

    async def swallows_it(ctx: TaskContext[Any]) -> int:
        try:
            await ctx.checkpoint(1)
        except asyncio.CancelledError:
            pass
        assert ctx.cancelled.is_set()
        return 1

    async def in_a_child(ctx: TaskContext[Any]) -> int:
        async with asyncio.TaskGroup() as group:
            group.create_task(ctx.checkpoint(1))
        await asyncio.sleep(60)
        return 1

    def in_a_thread(ctx: SyncTaskContext[Any]) -> int:
        try:
            ctx.checkpoint(1)
        except Exception as exc:
            raise AssertionError("it must pass `except Exception`") from exc
        return 1

    for handler in (lets_it_pass, swallows_it, in_a_child, in_a_thread):
        port = MemoryPort()
        port.trouble = Fenced("moved")
        assert verdict_of(handler, port=port) == Stopped("fenced"), handler


def test_a_server_that_is_away_for_too_long_is_no_failure_of_the_step() -> None:
    async def handler(ctx: TaskContext[Any]) -> None:
        await ctx.checkpoint(1)

    port = MemoryPort()
    port.trouble = ServerUnavailable("away")
    assert verdict_of(handler, port=port) == Stopped("lost")


def test_a_context_is_dead_after_its_handler() -> None:
    contexts: list[TaskContext[Any]] = []

    async def handler(ctx: TaskContext[Any]) -> None:
        contexts.append(ctx)

    async def story() -> None:
        call = call_of(handler)
        await execute(call)
        call.close()
        with pytest.raises(HandlerError, match="after its handler returned"):
            await contexts[0].checkpoint(1)

    asyncio.run(story())


def test_a_coroutine_that_is_closed_ends_and_gives_no_verdict() -> None:
    async def handler(ctx: TaskContext[Any]) -> None:
        await asyncio.sleep(60)

    async def around(call: Call) -> None:
        await execute(call)
        await asyncio.sleep(60)  # What a runner does with a verdict.

    async def story() -> None:
        call = call_of(handler)
        running = asyncio.create_task(around(call))
        while not call.started_ms:
            await asyncio.sleep(0)
        coroutine = running.get_coro()
        assert coroutine is not None
        coroutine.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(story())


# ------------------------------------------------------------------ stopping


def test_a_stop_cancels_an_async_handler_and_its_result_does_not_count() -> None:
    async def stubborn(ctx: TaskContext[Any]) -> int:
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return 1
        return 2

    async def waits_for_the_token(ctx: TaskContext[Any]) -> None:
        await ctx.cancelled.wait()

    async def story(handler: Any) -> Verdict:
        call = call_of(handler)
        running = asyncio.create_task(execute(call))
        await asyncio.sleep(0)
        call.stop("timeout")
        return await running

    for handler in (stubborn, waits_for_the_token):
        assert asyncio.run(story(handler)) == Stopped("timeout")


def test_a_stop_wakes_a_plain_function_that_asks() -> None:
    def handler(ctx: SyncTaskContext[Any]) -> bool:
        return ctx.cancelled.wait(30)

    async def story() -> Verdict:
        call = call_of(handler)
        running = asyncio.create_task(execute(call))
        await asyncio.sleep(0.05)
        call.stop("cancelled")
        return await running

    assert asyncio.run(story()) == Stopped("cancelled")


# ------------------------------------------------------------------ what a context tells


def test_the_deadline_is_the_nearer_of_timeout_and_max_duration() -> None:
    seen: list[Any] = []

    async def handler(ctx: TaskContext[Any]) -> None:
        seen.append((ctx.deadline, ctx.remaining_s))

    for timeout_ms, deadline_ms in ((0, 0), (5_000, 0), (0, NOW_MS + 3_000), (5_000, NOW_MS - 1)):
        verdict_of(handler, task(timeout_ms=timeout_ms, deadline_ms=deadline_ms))
    at = datetime.fromtimestamp(NOW_MS / 1000, UTC)
    assert seen == [
        (None, None),
        (at + timedelta(seconds=5), 5.0),
        (at + timedelta(seconds=3), 3.0),
        (at - timedelta(milliseconds=1), 0.0),
    ]


@pytest.mark.parametrize(
    ("iteration", "budget", "remaining"),
    [(0, "ok", 9), (4, "ok", 5), (5, "warn", 4), (7, "warn", 2), (8, "force", 1), (10, "force", 0)],
)
def test_the_budget_rises_with_the_iterations(iteration: int, budget: str, remaining: int) -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        return [ctx.budget, ctx.remaining_iterations]

    of = loop_task(iteration=iteration, budget_warn_at=5, budget_force_at=8)
    expected = msgspec.json.encode([budget, remaining])
    assert verdict_of(handler, of) == Complete(expected)


def test_log_records_carry_the_execution(caplog: pytest.LogCaptureFixture) -> None:
    port = MemoryPort()

    async def handler(ctx: TaskContext[Any]) -> None:
        ctx.heartbeat()
        ctx.logger.warning("seen", extra={"model": "m"})

    verdict_of(handler, task(attempt=3), port)
    record = caplog.records[0]
    fields = ("run", "step", "iteration", "attempt", "model")
    assert [getattr(record, name) for name in fields] == ["r1", "s", 0, 3, "m"]
    assert port.progressed == 1


def test_a_coroutine_that_an_async_handler_returns_is_to_be_awaited() -> None:
    async def handler(ctx: TaskContext[Any]) -> Any:
        return asyncio.sleep(0)

    verdict = verdict_of(handler)
    assert isinstance(verdict, Fail)
    assert "await it before you return" in verdict.failure.message
    assert "plain function" not in verdict.failure.message


def test_a_wait_until_what_is_no_time_is_an_error_with_its_remedy() -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        until: Any = -5
        return ctx.wait("nap", until=until)

    verdict = verdict_of(handler, loop_task())
    assert isinstance(verdict, Fail)
    assert verdict.failure.type == "HandlerError"
    assert "until -5, which is no time" in verdict.failure.message
