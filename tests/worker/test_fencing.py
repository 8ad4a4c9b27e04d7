"""Checkpoints under the fence: who may write, what a reader believes, what is never settled.
Method: a worker on a real server; the test plays the other executions and the engine."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.worker.stage import Stage, loop_task, open_stage, task, until_true

from treadle.sdk.bus.acks import Refused, WriteAck
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery
from treadle.sdk.messages import StepCompleted, StepContinued, TaskLost
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import RegisterAddress
from treadle.worker import LoopContext, TaskContext, Worker
from treadle.worker.checkpoints import CheckpointStore
from treadle.worker.execution import Fenced
from treadle.worker.held import HeldTask


class Gate:
    """Lets a test act between two lines of a handler."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.open = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.open.wait()


def test_the_settle_names_the_newest_checkpoint_as_its_head(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: LoopContext[None]) -> Any:
            await asyncio.gather(ctx.checkpoint(1), ctx.checkpoint(2))
            await ctx.checkpoint({"n": 3})
            return ctx.continue_(None)

        async with open_stage(settings) as stage, stage.running(worker):
            token = await stage.put(loop_task(iteration=4, attempt=2))
            event = await stage.event(StepContinued)
            stored, checkpoint = await stage.checkpoint()
        assert (event.token, event.head) == (token, stored.sequence)
        assert bytes(checkpoint.state) == b'{"n":3}'
        assert (checkpoint.iteration, checkpoint.attempt, checkpoint.token) == (4, 2, token)

    asyncio.run(story())


def test_a_checkpoint_that_the_handler_did_not_await_is_stored_before_the_settle(
    settings: Settings,
) -> None:
    async def story() -> None:
        worker = Worker()
        left: list[asyncio.Task[None]] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            left.append(asyncio.create_task(ctx.checkpoint(1)))
            await asyncio.sleep(0)

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task())
            event = await stage.event(StepCompleted)
            stored, _ = await stage.checkpoint()
            assert event.head == stored.sequence

    asyncio.run(story())


def test_another_attempt_loads_what_was_saved_and_by_whom(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()
        seen: list[Any] = []

        @worker.handler("work")
        async def work(ctx: LoopContext[None]) -> Any:
            seen.append((await ctx.load_checkpoint(dict), ctx.last_checkpoint))
            return ctx.continue_()

        async with open_stage(settings) as stage, stage.running(worker):
            # 0: there is none, and nothing is read. -1: unknown.
            first = await stage.put(loop_task(iteration=0))
            await stage.event(StepContinued)
            await stage.put_checkpoint({"a": 1}, expected=first, iteration=1, attempt=3)
            token = await stage.put(loop_task(iteration=1, attempt=4, checkpoint=-1))
            event = await stage.event(StepContinued, n=2)
        assert seen[0] == (None, None)
        state, info = seen[1]
        assert (state, info.iteration, info.attempt) == ({"a": 1}, 1, 3)
        assert event.head == token

    asyncio.run(story())


def test_the_worker_that_saved_reads_nothing_when_the_task_names_its_checkpoint(
    settings: Settings,
) -> None:
    async def story() -> None:
        worker = Worker()
        seen: list[Any] = []

        @worker.handler("work")
        async def work(ctx: LoopContext[None]) -> Any:
            seen.append(await ctx.load_checkpoint())
            if ctx.iteration == 0:
                await ctx.checkpoint("mine")
            return ctx.continue_()

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(loop_task())
            head = (await stage.event(StepContinued)).head
            # What stands now is something else: only a read would see it.
            other = await stage.put_checkpoint("other", expected=head)
            await stage.put(loop_task(iteration=1, checkpoint=head))
            await stage.event(StepContinued, n=2)
            await stage.put(loop_task(iteration=2, checkpoint=other))
            await stage.event(StepContinued, n=3)
        assert seen == [None, "mine", "other"]

    asyncio.run(story())


def test_an_execution_whose_twin_saved_first_stops_and_settles_nothing(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(ack_wait_s=0.5)
        gate = Gate()
        ends: list[str] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            await gate.pass_through()
            try:
                await ctx.checkpoint("second")
            except asyncio.CancelledError:
                ends.append(str(ctx.cancelled.reason))
                raise

        async with open_stage(settings) as stage, stage.running(worker):
            token = await stage.put(task())
            await gate.reached.wait()
            sequence = await stage.put_checkpoint("first", expected=token)
            gate.open.set()
            # Not acknowledged: the server delivers it again, and only then is it given up.
            event = await stage.event(TaskLost)
            assert event.token == token
            assert ends == ["fenced"]
            assert (await stage.checkpoint())[0].sequence == sequence
            assert len(await stage.events()) == 1

    asyncio.run(story())


def test_an_execution_whose_step_has_moved_on_stops_and_settles_nothing(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(ack_wait_s=0.5)
        gate = Gate()
        ends: list[str] = []

        @worker.handler("work")
        async def work(ctx: LoopContext[None]) -> Any:
            if ctx.iteration == 1:
                return ctx.complete("new")
            await gate.pass_through()
            try:
                await ctx.checkpoint("late")
            finally:
                ends.append(str(ctx.cancelled.reason))
            return ctx.complete("old")

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(loop_task())
            await gate.reached.wait()
            await stage.put(loop_task(iteration=1))
            event = await stage.event(StepCompleted)
            gate.open.set()
            await until_true(lambda: ends != [])
            assert ends == ["fenced"]
            assert bytes(event.output) == b'"new"'
            await stage.until_acked()
            assert len(await stage.events()) == 1
            at = stage.subjects.checkpoint("r1", "s")
            assert await stage.js.last(stage.subjects.steps_stream, at) is None

    asyncio.run(story())


def test_a_task_older_than_the_checkpoint_is_not_executed_further(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(ack_wait_s=0.5)
        went_on: list[str] = []

        @worker.handler("work")
        async def work(ctx: LoopContext[None]) -> Any:
            await ctx.load_checkpoint()
            went_on.append(ctx.run)
            return ctx.complete(1)

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put_checkpoint("newer", expected=0, iteration=5)
            await stage.put(loop_task(iteration=3, checkpoint=-1))
            await stage.event(TaskLost)
            assert went_on == []

    asyncio.run(story())


def test_a_checkpoint_of_a_twin_that_is_found_by_a_load_is_built_on(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()
        gate = Gate()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> Any:
            await gate.pass_through()
            return await ctx.load_checkpoint()

        async with open_stage(settings) as stage, stage.running(worker):
            token = await stage.put(task(checkpoint=-1))
            await gate.reached.wait()
            sequence = await stage.put_checkpoint("twin", expected=token)
            gate.open.set()
            event = await stage.event(StepCompleted)
            assert (bytes(event.output), event.token, event.head) == (b'"twin"', token, sequence)

    asyncio.run(story())


# ------------------------------------------------------------------ lost acknowledgements


class _Lossy(JetStream):
    """Throws the first acknowledgements away, after the write."""

    lose = 1

    async def _try(self, *args: Any, **kwargs: Any) -> WriteAck | Refused:
        answer = await super()._try(*args, **kwargs)
        if self.lose:
            self.lose -= 1
            raise Unknown("thrown away by the test")
        return answer


async def _held(stage: Stage) -> HeldTask:
    token = await stage.put(task())
    ack = f"$JS.ACK.s.c.1.{token}.1.0.0"
    subject = stage.subjects.register("r1", "s", "work")
    delivery = Delivery(stage.connection, subject, ack, None, b"")
    intake: Any = None
    return HeldTask(delivery, RegisterAddress("main", "r1", "s", "work"), task(), intake, 0.0)


def test_a_checkpoint_whose_acknowledgement_was_lost_is_recognised(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            held = await _held(stage)
            store = CheckpointStore(_Lossy(stage.connection), stage.subjects)
            await store.save(held, b"1")
            stored, checkpoint = await stage.checkpoint()
            assert held.head == stored.sequence == held.token + 1, "written once"
            await store.save(held, b"2")
            assert (await stage.checkpoint())[0].sequence == held.head
            assert bytes(checkpoint.state) == b"1"

    asyncio.run(story())


def test_a_twins_checkpoint_after_a_lost_acknowledgement_is_not_taken_for_ones_own(
    settings: Settings,
) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            held, twin = await _held(stage), CheckpointStore(stage.js, stage.subjects)
            store = CheckpointStore(_Lossy(stage.connection), stage.subjects)
            other = HeldTask(held.delivery, held.address, held.task, held.intake, 0.0)
            await twin.save(other, b'"twin"')
            with pytest.raises(Fenced, match=f"saved first, at sequence {other.head}"):
                await store.save(held, b'"mine"')
            assert held.head == held.token
            assert bytes((await stage.checkpoint())[1].state) == b'"twin"'

    asyncio.run(story())
