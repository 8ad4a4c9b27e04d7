"""What a worker says about each way a handler can end.
Method: put a task into a register on a real server, run a real worker, read the events."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from typing import Any

import msgspec
import pytest
from tests.worker.stage import Stage, loop_task, open_stage, task, until

from treadle.sdk.bus.puller import Puller
from treadle.sdk.errors import NonRetryable, Retryable
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Failure,
    StepCompleted,
    StepContinued,
    StepFailed,
    TaskDue,
    TaskLost,
)
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, SyncTaskContext, TaskContext, Worker


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_a_returned_value_completes_and_the_task_is_acknowledged(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[dict[str, int]]) -> Any:
            return {"sum": ctx.input["a"] + 1, "where": [ctx.run, ctx.step, ctx.attempt]}

        async with open_stage(settings) as stage:
            token = await stage.put(task({"a": 1}))
            async with stage.running(worker):
                event = await stage.event(StepCompleted)
                await stage.until_acked()
            assert msgspec.json.decode(event.output) == {"sum": 2, "where": ["r1", "s", 1]}
            assert (event.token, event.head, event.type) == (token, token, "work")
            assert len(await stage.events()) == 1

    asyncio.run(story())


def test_continue_carries_the_output_and_the_delay(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: LoopContext[int]) -> Any:
            if ctx.iteration < 2:
                return ctx.continue_(ctx.input + 1, delay=0.25 if ctx.iteration else None)
            return ctx.complete(ctx.input)

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(loop_task(5))
            first = await stage.event(StepContinued)
            await stage.put(loop_task(6, iteration=1))
            second = await stage.event(StepContinued, n=2)
            await stage.put(loop_task(7, iteration=2))
            third = await stage.event(StepCompleted, n=3)
        assert [bytes(e.output) for e in (first, second, third)] == [b"6", b"7", b"7"]
        assert [first.delay_ms, second.delay_ms] == [-1, 250]
        assert [e.iteration for e in (first, second, third)] == [0, 1, 2]

    asyncio.run(story())


@pytest.mark.parametrize(
    ("error", "kind", "retryable", "retry_after_ms"),
    [
        (ValueError("no"), "ValueError", True, 0),
        (NonRetryable("no"), "NonRetryable", False, 0),
        (Retryable("later", after_s=1.5), "Retryable", True, 1500),
        (SystemExit(3), "SystemExit", True, 0),
        (KeyboardInterrupt(), "KeyboardInterrupt", True, 0),
        (type("Odd", (BaseException,), {})("odd"), "Odd", True, 0),
        (ExceptionGroup("many", [ValueError(), NonRetryable()]), "ExceptionGroup", False, 0),
        (asyncio.CancelledError(), "CancelledError", True, 0),
        (StopIteration(), "RuntimeError", True, 0),
        (GeneratorExit(), "GeneratorExit", True, 0),
    ],
)
def test_whatever_a_handler_raises_becomes_a_failure_and_the_worker_goes_on(
    settings: Settings, error: BaseException, kind: str, retryable: bool, retry_after_ms: int
) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[str]) -> Any:
            if ctx.input == "raise":
                raise error
            return ctx.input

        @worker.handler("sync")
        def sync(ctx: SyncTaskContext[str]) -> Any:
            raise error

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task("raise"))
            await stage.put(task("raise"), type_="sync", run="r2")
            for run in ("r1", "r2"):
                failure = (await stage.event(StepFailed, run)).failure
                assert (failure.type, failure.retryable) == (kind, retryable)
                assert failure.retry_after_ms == retry_after_ms
            await stage.put(task("fine"), run="r3")
            await stage.event(StepCompleted, "r3")

    asyncio.run(story())


def test_a_recursion_without_end_is_a_failure_with_a_bounded_traceback(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        def deeper(n: int) -> int:
            return deeper(n + 1) + 1

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> int:
            return deeper(0)

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task())
            failure = (await stage.event(StepFailed)).failure
        assert failure.type == "RecursionError"
        assert "deeper" in failure.traceback and len(failure.traceback) < 8_100

    asyncio.run(story())


def test_each_settle_has_a_message_id_of_its_own_unless_they_are_off(settings: Settings) -> None:
    async def ids(settings: Settings) -> list[str]:
        worker = Worker()
        seen: list[str] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None: ...

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.connection.subscribe(
                stage.subjects.all_events,
                lambda message: seen.append(message.headers.get("Nats-Msg-Id", "")),
            )
            await stage.put(task())
            await stage.event(StepCompleted)
            await stage.put(task(attempt=2))
            await stage.event(StepCompleted, n=2)
        return seen

    seen = asyncio.run(ids(settings))
    assert len(set(seen)) == 2
    assert all(text.startswith("r1:s:0:complete:") for text in seen)
    off = Settings(url=settings.url, namespace=settings.namespace + "x", message_ids=False)
    assert asyncio.run(ids(off)) == ["", ""]


def test_an_output_larger_than_the_server_takes_is_a_failure_that_says_so(
    settings: Settings,
) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> str:
            return "x" * (600 * 1024)

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task())
            failure = (await stage.event(StepFailed)).failure
        assert failure.type == "InvalidPayload" and not failure.retryable
        assert "614402 bytes" in failure.message and "step 's'" in failure.message

    asyncio.run(story())


def test_a_register_without_work_is_acknowledged_and_says_nothing(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None: ...

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(Ended(parent="e1", outcome="failed", iterations=0))
            await stage.put(task(), run="r2")
            await stage.event(StepCompleted, "r2")
            await stage.until_acked()
            assert await stage.events() == []

    asyncio.run(story())


def test_a_delayed_task_is_handed_back_until_due_and_never_executed(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()
        executed: list[str] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            executed.append(ctx.run)

        async with open_stage(settings) as stage, stage.running(worker):
            due_ms = _now_ms() + 400
            token = await stage.put(Delayed(parent="e1", task=task(attempt=2), due_ms=due_ms))
            event = await stage.event(TaskDue)
            assert _now_ms() >= due_ms
            assert (event.token, event.attempt) == (token, 2)
            await stage.until_acked()
            assert len(await stage.events()) == 1
            assert executed == []

    asyncio.run(story())


def test_a_redelivered_task_is_reported_lost_and_not_executed(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(ack_wait_s=0.5)
        executed: list[str] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            executed.append(ctx.run)

        async with open_stage(settings) as stage:
            await _create_consumer(stage, worker)
            token = await stage.put(task())
            await _receive_and_vanish(stage)
            async with stage.running(worker):
                event = await stage.event(TaskLost)
                await stage.until_acked()
            assert event.token == token and "2 times" in event.reason
            assert executed == []

    asyncio.run(story())


async def _create_consumer(stage: Stage, worker: Worker) -> None:
    async with stage.running(worker):
        await stage.until_acked()


async def _receive_and_vanish(stage: Stage) -> None:
    """Take the task as a worker that is killed right after would."""
    taken = asyncio.Event()
    puller = Puller(
        stage.js,
        stage.subjects.steps_stream,
        stage.subjects.worker_consumer("work"),
        capacity=1,
        on_delivery=lambda _: taken.set(),
    )
    await puller.start()
    await taken.wait()
    await puller.stop()


def test_a_register_that_cannot_be_read_is_offered_again_and_the_others_go_on(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None: ...

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.js.store(stage.subjects.register("r1", "s", "work"), b'{"kind":"new"}')
            await stage.put(task(), run="r2")
            await stage.event(StepCompleted, "r2")
            await until(stage.consumer, lambda info: info["num_ack_pending"] == 1)

    asyncio.run(story())
    assert "worker.register-unreadable" in caplog.text


def test_the_last_failure_and_the_bounds_reach_the_handler(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: LoopContext[None]) -> Any:
            assert ctx.last_failure is not None
            assert ctx.deadline is not None and ctx.remaining_s is not None
            return [
                ctx.last_failure.type,
                ctx.attempt,
                ctx.remaining_iterations,
                ctx.budget,
                ctx.wrap_up,
                28 < ctx.remaining_s <= 30,
            ]

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(
                loop_task(
                    iteration=7,
                    attempt=2,
                    last_failure=Failure("Overloaded"),
                    budget_warn_at=5,
                    budget_force_at=8,
                    wrap_up="max_duration",
                    timeout_ms=60_000,
                    deadline_ms=_now_ms() + 30_000,
                )
            )
            event = await stage.event(StepCompleted)
        assert msgspec.json.decode(event.output) == [
            "Overloaded", 2, 2, "warn", "max_duration", True,
        ]  # fmt: skip

    asyncio.run(story())


def test_the_worker_waits_for_a_namespace_that_is_not_set_up_yet(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None: ...

        run = asyncio.create_task(worker.run(settings))
        while "worker.waiting" not in caplog.text:
            await asyncio.sleep(0.01)
        async with open_stage(settings) as stage:
            await stage.put(task())
            await stage.event(StepCompleted)
        worker.stop()
        await run

    asyncio.run(story())


def test_the_worker_imports_no_engine() -> None:
    code = "import sys, treadle.worker; print([m for m in sys.modules if 'treadle.engine' in m])"
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert answer.stdout.strip() == b"[]"
