"""What a handler does with messages, waits and budgets, and what its worker tells of it.
Method: handlers in memory with a port of a few lines; one worker on a real server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.worker.stage import loop_task, open_stage, task
from tests.worker.test_execution import NOW_MS, MemoryPort, call_of, failed_with, verdict_of

from treadle.sdk.messages import MessageSent, StepCompleted, StepFailed, StepWaiting
from treadle.sdk.settings import Settings
from treadle.sdk.spending import SpendingLimits, Spent
from treadle.worker import LoopContext, ReceivedMessage, SyncLoopContext, Worker
from treadle.worker.execution import execute
from treadle.worker.verdict import Complete, Wait


def message(sequence: int, value: bytes = b'"hi"') -> ReceivedMessage:
    return ReceivedMessage(
        sequence=sequence, kind="steer", id=f"m{sequence}", payload=msgspec.Raw(value)
    )


# ---------------------------------------------------------------- wait


@pytest.mark.parametrize(
    ("until", "due_ms"),
    [
        (None, 0),
        (timedelta(seconds=90), NOW_MS + 90_000),
        (timedelta(seconds=-1), NOW_MS),
        (datetime(2031, 1, 1, tzinfo=UTC), 1_924_992_000_000),
    ],
)
def test_wait_is_a_verdict_with_a_reason_and_a_time(until: Any, due_ms: int) -> None:
    def handler(ctx: SyncLoopContext[Any]) -> Any:
        return ctx.wait("a person", until, state={"asked": 1})

    assert verdict_of(handler, loop_task()) == Wait(b'{"asked":1}', "a person", due_ms)


def test_a_task_cannot_wait_and_a_time_needs_its_zone() -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        return ctx.wait("a person", datetime(2031, 1, 1))

    failed_with(verdict_of(handler, task()), "asked to wait", "agent_loop")
    failed_with(verdict_of(handler, loop_task()), "names no time zone", "datetime.now(UTC)")


def test_a_wait_and_another_verdict_are_one_too_many() -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        ctx.wait("a person")
        return ctx.complete(1)

    failed_with(verdict_of(handler, loop_task()), "2 verdicts: wait, complete")


# ---------------------------------------------------------------- messages


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_messages_are_those_that_no_committed_iteration_has_seen(kind: str) -> None:
    async def read(ctx: LoopContext[Any]) -> Any:
        return [m.decode(int) for m in await ctx.messages()]

    def read_blocking(ctx: SyncLoopContext[Any]) -> Any:
        return [m.decode(int) for m in ctx.messages()]

    port = MemoryPort()
    port.sent = [message(n, b"%d" % n) for n in (3, 5, 9)]
    call = call_of(read if kind == "async" else read_blocking, loop_task(seen=3), port)
    assert asyncio.run(execute(call)) == Complete(b"[5,9]")
    assert (call.seen, call.takes_messages) == (9, True)


def test_messages_may_be_read_again_from_any_point() -> None:
    async def read(ctx: LoopContext[Any]) -> Any:
        first = await ctx.messages(after=5)
        return [len(first), len(await ctx.messages(after=0)), len(await ctx.messages(after=9))]

    port = MemoryPort()
    port.sent = [message(n) for n in (3, 5, 9)]
    call = call_of(read, loop_task(), port)
    assert asyncio.run(execute(call)) == Complete(b"[1,3,0]")
    assert call.seen == 9


def test_a_handler_that_reads_none_says_so() -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        return 1

    call = call_of(handler, loop_task(seen=7))
    asyncio.run(execute(call))
    assert (call.seen, call.takes_messages) == (7, False)


def test_no_message_is_read_after_the_end() -> None:
    kept: list[LoopContext[Any]] = []

    async def handler(ctx: LoopContext[Any]) -> Any:
        kept.append(ctx)
        return 1

    async def story() -> None:
        call = call_of(handler, loop_task())
        await execute(call)
        call.close()
        with pytest.raises(Exception, match="used after its handler returned"):
            await kept[0].messages()

    asyncio.run(story())


# ---------------------------------------------------------------- spending


def test_a_report_replaces_the_earlier_one_and_lowers_nothing() -> None:
    async def handler(ctx: LoopContext[Any]) -> Any:
        assert ctx.spent_now == Spent(tool_calls=2)
        ctx.report_spent(Spent(tool_calls=5, input_tokens=10))
        ctx.report_spent(Spent(tool_calls=3, input_tokens=20))
        left = ctx.remaining
        return [ctx.spent.tool_calls, left.tool_calls, left.input_tokens, left.cost_usd]

    of = loop_task(
        spent=Spent(tool_calls=100),
        spent_now=Spent(tool_calls=2),
        limits=SpendingLimits(tool_calls=103, cost_micro_usd=2_500_000),
    )
    call = call_of(handler, of)
    assert asyncio.run(execute(call)) == Complete(b"[105,0,null,2.5]")
    assert call.spent_now == Spent(tool_calls=5, input_tokens=20)


def test_what_was_used_and_seen_is_told_with_every_verdict(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: LoopContext[str]) -> Any:
            ctx.report_spent(Spent(tool_calls=ctx.iteration + 1))
            found = await ctx.messages()
            if ctx.input == "wait":
                return ctx.wait("a person", timedelta(hours=1), state=len(found))
            if ctx.input == "fail":
                raise RuntimeError("after all")
            return ctx.complete()

        async with open_stage(settings) as stage, stage.running(worker):
            sent = MessageSent(step="s", id="m1", payload=msgspec.Raw(b"1"))
            subject = stage.subjects.messages("r2", "s")
            sequence = await stage.js.store(subject, msgspec.json.encode(sent))
            await stage.put(loop_task("wait"), run="r2")
            waiting = await stage.event(StepWaiting, run="r2", n=2)
            await stage.put(loop_task("fail", iteration=1), run="r1")
            failed = await stage.event(StepFailed)
            await stage.put(loop_task("", iteration=2), run="r1")
            completed = await stage.event(StepCompleted, n=2)
            await stage.until_acked()
        assert (waiting.reason, bytes(waiting.output)) == ("a person", b"1")
        assert waiting.due_ms > 0
        assert (waiting.seen, waiting.takes_messages) == (sequence, True)
        assert [e.spent.tool_calls for e in (waiting, failed, completed)] == [1, 2, 3]
        assert (failed.seen, completed.takes_messages) == (0, True)

    asyncio.run(story())
