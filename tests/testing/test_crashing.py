"""``crash_everywhere``: what survives passes, what does not is told with the moment that broke it.
Method: workflows in memory; what must not run in a dead process tells of itself as an effect."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from treadle.sdk import Retry, Workflow
from treadle.sdk.testing import (
    CrashesShow,
    CrashReport,
    Message,
    Resume,
    Signal,
    crash_everywhere,
    happened,
)
from treadle.worker import (
    FailedStep,
    LoopContext,
    Reply,
    SyncLoopContext,
    SyncTaskContext,
    TaskContext,
    Worker,
)

pytestmark = pytest.mark.timeout(120)


def survives(workflow: Workflow[Any], value: object, worker: Any, **options: Any) -> CrashReport:
    return asyncio.run(crash_everywhere(workflow, value, worker, **options))


def faults(workflow: Workflow[Any], value: object, worker: Any, **options: Any) -> tuple[str, ...]:
    with pytest.raises(CrashesShow) as shown:
        survives(workflow, value, worker, **options)
    return shown.value.faults


def one(handler: Callable[..., Any], *, loop: bool = False) -> tuple[Workflow[Any], Worker]:
    """A workflow of one step, ``only``."""
    workflow, worker = Workflow[Any]("one"), Worker()
    if loop:
        workflow.agent_loop("only", max_iterations=9)
    else:
        workflow.task("only")
    worker.handler("only")(handler)
    return workflow, worker


def test_what_every_life_logs_is_said_once_and_by_the_next_test_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def warns(ctx: TaskContext[Any]) -> int:
        ctx.logger.warning("the disk is old")
        return 1

    for times in (1, 2):
        assert survives(one(warns)[0], None, one(warns)[1]).lives > 3
        assert caplog.messages.count("the disk is old") == times


def test_a_loop_that_keeps_its_state_in_checkpoints_survives_all_of_it() -> None:
    async def count(ctx: LoopContext[Any]) -> object:
        n = await ctx.load_checkpoint(int) or 0
        if ctx.last_checkpoint is None or ctx.last_checkpoint.iteration != ctx.iteration:
            n += 1
            await ctx.checkpoint(n)
        return ctx.continue_() if n < 3 else ctx.complete(n)

    report = survives(*_with(one(count, loop=True), None))
    assert report.outcome == 3
    stored = [(each.what, each.number) for each in report.boundaries]
    assert stored[:4] == [
        ("run document", 0),
        ("register of step 'only'", 0),
        ("acknowledgement of an event", 0),
        ("checkpoint of step 'only'", 0),
    ]
    assert stored.count(("verdict of step 'only'", 2)) == 1
    of_workers = sum(each.by == "worker" for each in report.boundaries)
    assert report.lives == 2 + 2 * of_workers + 6 * (len(stored) - of_workers)
    crashes = f"{report.lives - 2} crashes at {len(stored)} boundaries"
    assert str(report) == f"survives {report.lives} lives, {crashes}: comes to 3 in each"


def test_what_repeats_an_iteration_is_told_with_the_moment_that_broke_it() -> None:
    async def count(ctx: LoopContext[Any]) -> object:
        n = (await ctx.load_checkpoint(int) or 0) + 1
        await ctx.checkpoint(n)
        return ctx.continue_() if n < 2 else ctx.complete(ctx.iteration)

    found = faults(*_with(one(count, loop=True), None))
    assert (
        "worker killed before the verdict of step 'only' is stored: it comes to 0 instead of 1"
        in found
    )
    assert all("engine" not in fault for fault in found)
    assert faults(*_with(one(count, loop=True), None)) == found


def test_an_effect_before_the_first_checkpoint_is_repeated_by_a_crash_and_by_a_second_worker() -> (
    None
):
    async def mail(ctx: TaskContext[Any]) -> int:
        happened("mail")
        await ctx.checkpoint(1)
        return 1

    found = faults(*_with(one(mail), None))
    assert set(found) == {
        "worker killed before the checkpoint of step 'only' is stored: the effect 'mail' happens 2 "
        "times instead of 1",
        "worker killed after the checkpoint of step 'only' is stored: the effect 'mail' happens 2 "
        "times instead of 1",
        "worker killed before the verdict of step 'only' is stored: the effect 'mail' happens 2 "
        "times instead of 1",
        "everything delivered twice: the effect 'mail' happens 2 times instead of 1",
    } | {fault for fault in found if "register of step 'only'" in fault}


def test_a_dead_process_runs_no_line_more_its_own_tasks_included() -> None:
    async def work(ctx: TaskContext[Any]) -> int:
        async def later() -> None:
            await asyncio.sleep(60)
            happened("child")

        child = asyncio.create_task(later())
        if await ctx.load_checkpoint(int) is None:
            await ctx.checkpoint(1)
        await child
        await ctx.checkpoint(2)
        return 1

    workflow, worker = one(work)
    found = faults(workflow, None, worker)
    # Only a death after the sleep, before the verdict, lets the child run again.
    assert found and all("2 times" in fault for fault in found)
    before_it = [fault for fault in found if "checkpoint of step 'only' is stored:" in fault]
    assert before_it == []


def test_a_finally_does_not_run_where_the_process_was_killed() -> None:
    async def work(ctx: TaskContext[Any]) -> int:
        try:
            await ctx.checkpoint(await ctx.load_checkpoint(int) or 1)
        finally:
            happened(f"left in attempt {ctx.attempt}")
        return 1

    # Two workers at a time both live, and both leave.
    assert faults(*_with(one(work), None)) == (
        "everything delivered twice: the effect 'left in attempt 1' happens 2 times instead of 1",
    )


def test_memory_of_a_worker_dies_with_it_if_each_process_makes_its_own() -> None:
    workflow = Workflow[Any]("memory")
    workflow.agent_loop("only", max_iterations=9)

    def made() -> Worker:
        worker, seen = Worker(), list[int]()

        @worker.handler("only")
        async def only(ctx: LoopContext[Any]) -> object:
            seen.append(ctx.iteration)
            done = {each for each in seen if each < 3}
            return ctx.continue_() if ctx.iteration < 2 else ctx.complete(sorted(done))

        return worker

    found = faults(workflow, None, made)
    assert any("it comes to [2] instead of [0, 1, 2]" in fault for fault in found)
    survives(workflow, None, made())


def test_plain_functions_in_threads_are_killed_at_their_context() -> None:
    def work(ctx: SyncTaskContext[Any]) -> int:
        if ctx.load_checkpoint(int) is None:
            ctx.checkpoint(5)
        return ctx.load_checkpoint(int) or 0

    assert survives(*_with(one(work), None)).outcome == 5

    def count(ctx: SyncLoopContext[Any]) -> object:
        ctx.checkpoint((ctx.load_checkpoint(int) or 0) + 1)
        return ctx.complete(ctx.load_checkpoint(int))

    found = faults(*_with(one(count, loop=True), None))
    assert any("it comes to 2 instead of 1" in fault for fault in found)


def _language() -> tuple[Workflow[Any], Worker]:
    """Steps of many kinds, delays, timeouts, retries, waits and compensations."""
    workflow = Workflow[Any]("language", timeout=timedelta(days=1))
    first = workflow.task("first", "echo", retry=Retry(max_attempts=3, delay_s=5, jitter=0))
    nap = workflow.sleep("nap", timedelta(hours=1), after=first)
    signed = workflow.wait_for_signal("signed", signal="sign", after=first)
    talk = workflow.agent_loop("talk", after=first, max_iterations=5)
    skipped = workflow.task("skipped", "echo", after=first, when='steps["first"] == 0')
    asked = workflow.approval("asked", prompt="ok?", after=[signed])
    workflow.task("last", "echo", after=[nap, talk, asked, skipped])
    worker = Worker()

    @worker.handler("echo")
    async def echo(ctx: TaskContext[Any]) -> Any:
        if ctx.step == "first" and ctx.last_failure is None and ctx.attempt < 3:
            raise OSError("not yet")
        return ctx.input

    @worker.handler("talk")
    async def talked(ctx: LoopContext[Any]) -> object:
        heard = [message.decode(str) for message in await ctx.messages(0)]
        return ctx.complete(heard) if len(heard) == 2 else ctx.wait("two messages")

    return workflow, worker


@pytest.mark.slow
def test_timers_waits_messages_and_people_survive_a_death_of_either_side() -> None:
    workflow, worker = _language()
    report = survives(
        workflow,
        7,
        worker,
        signals=[Signal("sign", "ana", after_s=60)],
        messages=[Message("talk", "a", after_s=30), Message("talk", "b", after_s=90)],
        answers=lambda ask: Reply(call_id=ask.id, verdict="approve", by="bo"),
        compare=lambda run: (run.status, run.step("talk").output, run.step("signed").output),
    )
    assert report.outcome == ("completed", ["a", "b"], "ana")
    waiting = survives(workflow, 7, worker)
    assert waiting.outcome == ("failed", "run_timeout")


@pytest.mark.slow
def test_pauses_bounds_and_cancels_survive_too() -> None:
    async def count(ctx: LoopContext[Any]) -> object:
        return ctx.continue_(ctx.input + 1, delay=10)

    workflow = Workflow[Any]("bounded")
    workflow.agent_loop("only", max_iterations=4, on_limit="park")
    worker = Worker()
    worker.handler("only")(count)
    parked = survives(workflow, 0, worker)
    assert parked.outcome[0] == "parked"
    resumed = survives(
        workflow,
        0,
        worker,
        resume=Resume(after_s=500, add_iterations=3),
        compare=lambda run: (run.status, run.step("only").iterations),
    )
    assert resumed.outcome == ("parked", 7)
    cancelled = survives(workflow, 0, worker, cancel_after_s=25)
    assert cancelled.outcome[0] == "cancelled"
    paused = survives(workflow, 0, worker, pause_after_s=15, resume=Resume(after_s=100))
    assert paused.outcome[0] == "parked"


def test_compensations_and_handled_failures_happen_once_each() -> None:
    workflow = Workflow[Any]("trip")
    flight = workflow.task("flight", "book", compensate="undo")
    workflow.task("pay", after=flight, on_failure="sorry")
    workflow.task("undo", "undo")
    workflow.task("sorry")
    worker = Worker()

    @worker.handler("book")
    async def book(ctx: TaskContext[Any]) -> str:
        return "seat"

    @worker.handler("pay")
    async def pay(ctx: TaskContext[Any]) -> None:
        raise ValueError("refused")

    @worker.handler("sorry")
    async def sorry(ctx: TaskContext[FailedStep]) -> None:
        raise ValueError(f"{ctx.input.step} too")

    @worker.handler("undo")
    async def undo(ctx: TaskContext[Any]) -> str:
        return f"undone {ctx.input}"

    report = survives(
        workflow, None, worker, compare=lambda run: (run.status, run.step("undo").output)
    )
    assert report.outcome == ("failed", "undone seat")


def _with(
    pair: tuple[Workflow[Any], Worker], value: object
) -> tuple[Workflow[Any], object, Worker]:
    return pair[0], value, pair[1]


@pytest.mark.slow
def test_maps_limits_and_plans_survive_too() -> None:
    workflow = Workflow[Any]("more", input=list[int])
    each = workflow.map("each", "double", chunk=2, retry=Retry(max_attempts=2, delay_s=1))
    left = workflow.task("left", "sum", after=each, concurrency=1)
    right = workflow.task("right", "sum", after=each, concurrency=1)
    workflow.task("both", "sum-both", after=[left, right])
    worker = Worker()

    @worker.handler("double")
    async def double(ctx: TaskContext[int]) -> int:
        if ctx.index == 1 and ctx.attempt == 1 and ctx.last_failure is None:
            raise OSError("not yet")
        return 2 * ctx.input

    @worker.handler("sum")
    async def add(ctx: TaskContext[list[int]]) -> int:
        return sum(ctx.input)

    @worker.handler("sum-both")
    async def both(ctx: TaskContext[dict[str, int]]) -> int:
        return sum(ctx.input.values())

    assert survives(workflow, [1, 2, 3], worker).outcome == 24
