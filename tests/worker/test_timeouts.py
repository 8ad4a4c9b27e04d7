"""Handlers that run too long, block, or do not stop; tasks are kept alive and given up in time.
Method: a worker on a real server with a short ack_wait; look at events and redeliveries."""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import pytest
from tests.worker.stage import open_stage, task, until_true

from treadle.sdk.messages import StepCompleted, StepFailed
from treadle.sdk.settings import Settings
from treadle.worker import SyncTaskContext, TaskContext, Worker

ACK_WAIT_S = 1.0


def test_a_timeout_cancels_the_handler_and_fails_the_attempt(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()
        ends: list[str] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ends.append(str(ctx.cancelled.reason))

        async with open_stage(settings) as stage, stage.running(worker):
            token = await stage.put(task(timeout_ms=150, attempt=2, iteration=3))
            event = await stage.event(StepFailed)
            assert (event.failure.type, event.failure.retryable) == ("timeout", True)
            # A plain task has no iterations.
            assert event.failure.message.startswith("attempt 2 ran longer than its timeout of 0.15")
            assert (event.token, event.head, ends) == (token, token, ["timeout"])
            await stage.until_acked()

    asyncio.run(story())


@pytest.mark.slow
def test_a_handler_that_blocks_the_loop_is_timed_out_and_named_while_it_blocks(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        worker = Worker(ack_wait_s=ACK_WAIT_S)
        stored_s: list[float] = []
        released_s: list[float] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> str:
            if ctx.run == "r2":
                return "fine"
            # Two and a half times ack_wait: nothing on this loop runs meanwhile.
            time.sleep(2.5 * ACK_WAIT_S)
            released_s.append(time.time())
            return "too late"

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task(timeout_ms=300))
            event = await stage.event(StepFailed)
            last = await stage.js.last(
                stage.subjects.events_stream, stage.subjects.events_of_run("r1")
            )
            assert last is not None
            stored_s.append(last.time_ms / 1000)
            assert event.failure.type == "timeout"
            await until_true(lambda: released_s != [])
            assert stored_s[0] < released_s[0] - 1.0, "stored while the loop was blocked"
            await stage.put(task(), run="r2")
            await stage.event(StepCompleted, "r2")
            await stage.until_acked()
            assert len(await stage.events()) == 1, "the late result is never published"
            await until_true(lambda: "worker.loop-resumed" in caplog.text)

    asyncio.run(story())
    assert "worker.loop-blocked" in caplog.text
    assert "test_timeouts.py:" in caplog.text and "in work." in caplog.text


@pytest.mark.parametrize("kind", ["async", "sync"])
def test_a_handler_that_cannot_be_stopped_is_abandoned_and_its_slot_is_free_again(
    settings: Settings, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def story() -> None:
        worker = Worker(concurrency=1)
        go_on = threading.Event()
        late: list[str] = []

        @worker.handler("async")
        async def stubborn(ctx: TaskContext[str]) -> str:
            while ctx.input == "hang" and not go_on.is_set():
                try:
                    await asyncio.sleep(0.05)
                except asyncio.CancelledError:
                    pass
            late.append(ctx.input)
            return ctx.input

        @worker.handler("sync")
        def blocking(ctx: SyncTaskContext[str]) -> str:
            if ctx.input == "hang":
                go_on.wait(20)
            late.append(ctx.input)
            return ctx.input

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task("hang", timeout_ms=100), type_=kind)
            event = await stage.event(StepFailed)
            assert event.failure.type == "timeout"
            await stage.put(task("fine"), type_=kind, run="r2")
            await stage.event(StepCompleted, "r2")
            assert worker.abandoned == 1
            go_on.set()
            await until_true(lambda: worker.abandoned == 0)
            assert late == ["fine", "hang"]
            assert len(await stage.events()) == 1, "its result is never published"

    asyncio.run(story())
    assert "worker.handler-abandoned" in caplog.text


@pytest.mark.slow
def test_long_handlers_and_tasks_that_wait_for_a_slot_keep_their_tasks(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(concurrency=1, ack_wait_s=ACK_WAIT_S)
        order: list[str] = []

        @worker.handler("sync")
        def blocking(ctx: SyncTaskContext[None]) -> None:
            assert threading.current_thread().name.startswith("treadle-handler")
            time.sleep(2 * ACK_WAIT_S)
            order.append(ctx.run)

        @worker.handler("waits")
        async def waits(ctx: TaskContext[None]) -> None:
            order.append(ctx.run)

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task(), type_="sync", run="r1")
            await until_true(lambda: any(beat.held for beat in stage.beats))
            await stage.put(task(), type_="waits", run="r2")
            await until_true(lambda: len(stage.beats[-1].held) == 2)
            await stage.event(StepCompleted, "r1")
            await stage.event(StepCompleted, "r2")
            assert order == ["r1", "r2"]
            for type_ in ("sync", "waits"):
                info = await stage.consumer(type_)
                assert info["num_redelivered"] == 0
                assert info["delivered"]["consumer_seq"] == 1

    asyncio.run(story())


def test_concurrency_is_bounded_per_worker_and_per_handler(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(concurrency=3)
        running = {"a": 0, "b": 0}
        most = {"a": 0, "b": 0, "all": 0}

        async def count(kind: str) -> None:
            running[kind] += 1
            most[kind] = max(most[kind], running[kind])
            most["all"] = max(most["all"], sum(running.values()))
            await asyncio.sleep(0.02)
            running[kind] -= 1

        @worker.handler("a", concurrency=1)
        async def a(ctx: TaskContext[None]) -> None:
            await count("a")

        @worker.handler("b")
        async def b(ctx: TaskContext[None]) -> None:
            await count("b")

        async with open_stage(settings) as stage:
            for n in range(8):
                await stage.put(task(), type_="a", run=f"a{n}")
                await stage.put(task(), type_="b", run=f"b{n}")
            async with stage.running(worker):
                for n in range(8):
                    await stage.event(StepCompleted, f"a{n}")
                    await stage.event(StepCompleted, f"b{n}")
        assert (most["a"], most["all"]) == (1, 3)

    asyncio.run(story())


def test_plain_functions_run_at_the_same_time(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()
        together = threading.Barrier(4, timeout=10)

        @worker.handler("work")
        def work(ctx: SyncTaskContext[None]) -> Any:
            return together.wait()

        async with open_stage(settings) as stage, stage.running(worker):
            for n in range(4):
                await stage.put(task(), run=f"r{n}")
            for n in range(4):
                await stage.event(StepCompleted, f"r{n}")

    asyncio.run(story())
