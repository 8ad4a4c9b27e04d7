"""Bounds and retries end to end: real engine, real worker, real time.

Each handler notes what it sees; each test asserts what must not happen, too.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import NonRetryable, Retry, Retryable, RunFailed, Workflow
from treadle.sdk.messages import Ended, Parked, Task
from treadle.worker import LoopContext, SyncLoopContext, TaskContext, Worker
from treadle.worker.verdict import Complete, Continue

QUICK = Retry(max_attempts=3, backoff="fixed", delay_s=0.05, jitter=0)


class Seen(list[tuple[int, int]]):
    """The executions of a loop: iteration and attempt."""

    def note(self, ctx: LoopContext[Any] | SyncLoopContext[Any]) -> None:
        self.append((ctx.iteration, ctx.attempt))


def endless(seen: Seen, pause_s: float = 0) -> Worker:
    """Return a worker whose loop never completes, except to wrap up."""
    worker = Worker()

    @worker.handler("link")
    async def go_on(ctx: LoopContext[Any]) -> Continue | Complete:
        seen.note(ctx)
        if ctx.wrap_up:
            return ctx.complete(f"wrapped up after {ctx.iteration}: {ctx.wrap_up}")
        await asyncio.sleep(pause_s)
        return ctx.continue_(ctx.iteration + 1)

    return worker


# ---------------------------------------------------------------- iterations, duration


def test_max_iterations_are_exactly_so_many(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen = Seen()
        await stand.engine()
        stand.worker(endless(seen))
        await stand.client.start(loop(max_iterations=7), 0, id="run")
        with pytest.raises(RunFailed, match="max_iterations") as caught:
            await stand.client.result("run", timeout_s=10)
        assert "all of its 7 iterations" in str(caught.value)
        assert caught.value.iteration is None, "the bound was reached between two"
        assert (await stand.letter("run")).step == "loop"  # Written before anyone saw the end.
        await stand.quiet(0.3)
        assert seen == [(n, 1) for n in range(7)]

    play(story)


@pytest.mark.parametrize("kind", ["async", "blocking"])
def test_a_hung_iteration_is_cut_by_max_duration_while_it_hangs(play: Play, kind: str) -> None:
    async def story(stand: Stand) -> None:
        worker, released = Worker(drain_timeout_s=0), asyncio.Event()

        async def wait(ctx: LoopContext[Any]) -> Continue:
            if ctx.iteration:
                await released.wait()
            return ctx.continue_()

        def block(ctx: SyncLoopContext[Any]) -> Continue:
            while ctx.iteration and not ctx.cancelled.is_set():
                time.sleep(0.01)
            return ctx.continue_()

        worker.handler("link")(wait if kind == "async" else block)
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(max_duration=0.6), None, id="run")
        ended = await stand.ended(timeout_s=5)
        assert ended.failure is not None
        assert ended.failure.type == "max_duration"
        # Schedules fire 0 to 250 ms late.
        assert 600 <= ended.ended_ms - ended.requested_ms < 2_500

    play(story)


def test_a_run_that_waits_for_a_signal_times_out_without_any_traffic(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("idle", timeout=0.5)
        workflow.wait_for_signal("approval")
        await stand.client.start(workflow, id="run")
        ended = await stand.ended(timeout_s=5)
        assert ended.status == "failed"
        assert ended.failure is not None
        assert ended.failure.type == "run_timeout"
        assert 500 <= ended.ended_ms - ended.requested_ms < 2_500

    play(story)


# ---------------------------------------------------------------- timeout of an attempt


def test_a_later_iteration_that_hangs_times_out_and_its_next_attempt_goes_on(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, seen = Worker(), Seen()

        @worker.handler("link")
        async def hang_once(ctx: LoopContext[Any]) -> Continue | Complete:
            seen.note(ctx)
            if (ctx.iteration, ctx.attempt) == (2, 1):
                await asyncio.sleep(30)
            return ctx.complete(ctx.attempt) if ctx.iteration == 2 else ctx.continue_()

        await stand.engine()
        stand.worker(worker)
        started_s = time.monotonic()
        await stand.client.start(loop(timeout=0.4, retry=QUICK), None, id="run")
        assert await stand.client.result("run", timeout_s=10) == 2
        assert 0.4 <= time.monotonic() - started_s < 5
        assert seen == [(0, 1), (1, 1), (2, 1), (2, 2)]

    play(story)


@pytest.mark.slow
def test_ten_iterations_of_300_ms_under_a_timeout_of_1_s_do_not_fail(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen = Seen()
        await stand.engine()
        stand.worker(endless(seen, pause_s=0.3))
        await stand.client.start(loop(max_iterations=10, timeout=1.0), None, id="run")
        ended = await stand.ended()
        assert ended.failure is not None
        assert ended.failure.type == "max_iterations"
        assert seen == [(n, 1) for n in range(10)]

    play(story)


# ---------------------------------------------------------------- retries


def test_attempts_count_for_each_iteration_on_its_own(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, seen = Worker(), Seen()

        @worker.handler("link")
        async def fail_twice(ctx: LoopContext[Any]) -> Continue | Complete:
            seen.note(ctx)
            if ctx.attempt < 3:
                raise ValueError(f"attempt {ctx.attempt}")
            assert ctx.last_failure is not None
            assert ctx.last_failure.message == "attempt 2"
            return ctx.complete() if ctx.iteration == 2 else ctx.continue_()

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(retry=QUICK), None, id="run")
        assert (await stand.ended()).status == "completed"
        assert seen == [(iteration, attempt) for iteration in range(3) for attempt in (1, 2, 3)]

    play(story)


def test_a_step_that_fails_at_once_uses_up_its_attempts_and_no_more(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, seen = Worker(), Seen()

        @worker.handler("link")
        async def fail(ctx: LoopContext[Any]) -> Continue:
            seen.note(ctx)
            raise OSError("the disk is gone")

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(retry=QUICK), None, id="run")
        ended = await stand.ended()
        assert ended.failure is not None
        assert (ended.failure.type, ended.failure.message) == ("OSError", "the disk is gone")
        await stand.quiet(0.4)
        assert seen == [(0, 1), (0, 2), (0, 3)]

    play(story)


def test_what_is_not_retryable_ends_the_step_at_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, seen = Worker(), Seen()

        @worker.handler("link")
        async def refuse(ctx: LoopContext[Any]) -> Continue:
            seen.note(ctx)
            raise NonRetryable("never")

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(retry=QUICK), None, id="run")
        assert (await stand.ended()).status == "failed"
        await stand.quiet(0.3)
        assert seen == [(0, 1)]

    play(story)


def test_a_retry_comes_no_sooner_than_the_handler_asked(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, at_s = Worker(), list[float]()

        @worker.handler("link")
        async def ask(ctx: LoopContext[Any]) -> Complete:
            at_s.append(time.monotonic())
            if ctx.attempt == 1:
                raise Retryable("busy", after_s=0.7)
            return ctx.complete()

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(retry=QUICK), None, id="run")
        assert (await stand.ended()).status == "completed"
        first, second = at_s
        assert 0.69 <= second - first < 3

    play(story)


# ---------------------------------------------------------------- what a bound does


def test_a_loop_wraps_up_with_one_last_iteration(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen = Seen()
        await stand.engine()
        stand.worker(endless(seen))
        await stand.client.start(loop(max_iterations=3, on_limit="wrap_up"), None, id="run")
        result = await stand.client.result("run", timeout_s=10)
        assert result == "wrapped up after 3: max_iterations"
        assert seen == [(0, 1), (1, 1), (2, 1), (3, 1)]

    play(story)


def test_a_loop_parks_and_goes_on_where_it_was_when_it_is_resumed(play: Play) -> None:
    async def story(stand: Stand) -> None:
        worker, seen, inputs = Worker(), Seen(), list[Any]()

        @worker.handler("link")
        async def count(ctx: LoopContext[Any]) -> Continue | Complete:
            seen.note(ctx)
            inputs.append(ctx.input)
            await ctx.checkpoint({"at": ctx.iteration})
            return ctx.complete("done") if ctx.iteration == 4 else ctx.continue_(ctx.input + 1)

        await stand.engine()
        stand.worker(worker)
        await stand.client.start(loop(max_iterations=2, on_limit="park"), 10, id="run")
        await stand.status("run", "parked")
        await stand.holds(Parked)
        await stand.quiet(0.3)
        assert seen == [(0, 1), (1, 1)]
        await stand.client.resume("run", add_iterations=2)
        await stand.until("it parks again", _count(seen), lambda n: n == 4)
        await stand.status("run", "parked")
        await stand.client.resume("run", max_iterations=9)
        assert await stand.client.result("run", timeout_s=10) == "done"
        assert seen == [(n, 1) for n in range(5)]
        assert inputs == [10, 11, 12, 13, 14]

    play(story)


@pytest.mark.slow
def test_a_loop_parked_at_its_duration_is_resumed_with_more_time(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen = Seen()
        await stand.engine()
        stand.worker(endless(seen, pause_s=0.1))
        definition = loop(max_duration=0.5, max_iterations=1000, on_limit="park")
        await stand.client.start(definition, None, id="run")
        parked = await stand.status("run", "parked")
        assert parked.failure is not None
        assert parked.failure.type == "max_duration"
        before = len(seen)
        await asyncio.sleep(0.3)  # Time spent parked does not count.
        await stand.client.resume("run", add_duration=timedelta(seconds=0.6))
        await stand.status("run", "running")
        await stand.status("run", "parked")
        assert len(seen) - before >= 3
        await stand.client.cancel("run")
        assert (await stand.ended()).status == "cancelled"
        await stand.holds(Ended)

    play(story)


def _count(seen: Seen) -> Callable[[], Awaitable[int]]:
    async def count() -> int:
        return len(seen)

    return count


# ---------------------------------------------------------------- a sibling


def test_a_loop_stops_when_a_step_beside_it_fails(play: Play) -> None:
    async def story(stand: Stand) -> None:
        seen = Seen()
        worker = endless(seen, pause_s=0.02)

        @worker.handler("trip")
        async def trip(ctx: TaskContext[Any]) -> None:
            while len(seen) < 3:
                await asyncio.sleep(0.01)
            raise NonRetryable("the sibling fell")

        workflow = Workflow("siblings")
        workflow.agent_loop("loop", "link", max_iterations=100_000)
        workflow.task("other", "trip")
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(workflow, None, id="run")
        ended = await stand.ended()
        assert ended.failed_step == "other"
        await stand.holds(Ended)
        after = len(seen)
        await stand.quiet(0.5)
        assert len(seen) <= after + 1  # At most the one that was under way.

    play(story)


def test_a_resume_that_nobody_told_the_document_is_told_when_it_is_delivered_again(
    play: Play,
) -> None:
    """Its engine died after it moved the register, and the loop has moved on since."""

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await stand.client.start(loop(max_iterations=1, on_limit="park"), 0, id="run")
        first = await stand.holds(Task)
        await stand.continues(first.token, 1)
        await stand.status("run", "parked")
        parked = await stand.holds(Parked)
        await stand.stop(engine)

        await stand.client.resume("run", add_iterations=9)
        assert isinstance(parked.register, Parked)
        # What that engine and its successor stored: the resumed task, then the next iteration.
        resumed = msgspec.structs.replace(
            parked.register.task, parent="e3", max_iterations=10, iteration=2
        )
        moved = await stand.js.attempt(
            stand.register_subject(), msgspec.json.encode(resumed), expected=parked.token
        )
        assert isinstance(moved, int)
        resumed = msgspec.structs.replace(resumed, parent="e99", iteration=3)
        moved = await stand.js.attempt(
            stand.register_subject(), msgspec.json.encode(resumed), expected=moved
        )
        assert isinstance(moved, int)

        await stand.engine()
        await stand.status("run", "running")
        await stand.completes(moved, "done", iteration=3)
        assert await stand.client.result("run", timeout_s=10) == "done"

    play(story)
