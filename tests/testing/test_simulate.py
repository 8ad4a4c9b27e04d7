"""The in-memory runner: real handlers and the real core on virtual time.

Each test tells a story of a run and asserts how it ends, and that waiting took no real time.
"""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

import pytest

from treadle.sdk import Retry, RunCancelled, RunConflict, RunFailed, Workflow
from treadle.sdk.errors import HandlerError, InvalidDefinition
from treadle.sdk.messages import LaneGranted, StepContinued, StepFailed, TimerFired
from treadle.sdk.testing import Resume, Signal, SimulatedRun, simulate
from treadle.worker import Ask, LoopContext, Reply, SyncTaskContext, TaskContext, Worker

REAL_S_MAX = 20.0
"""Far above what any of these takes, and far below the virtual hours they play."""


def play(workflow: Workflow, value: object, worker: Worker, **options: object) -> SimulatedRun:
    started = time.monotonic()
    run = asyncio.run(simulate(workflow, value, worker, **options))  # type: ignore[arg-type]
    assert time.monotonic() - started < REAL_S_MAX
    return run


def countdown(**options: object) -> tuple[Workflow, Worker]:
    workflow = Workflow("countdown")
    workflow.agent_loop("count", **{"max_iterations": 20, **options})  # type: ignore[arg-type]
    worker = Worker()

    @worker.handler("count")
    async def count(ctx: LoopContext[int]) -> object:
        if ctx.wrap_up:
            return ctx.complete(f"stopped at {ctx.input}")
        return ctx.continue_(ctx.input - 1) if ctx.input else ctx.complete("lift-off")

    return workflow, worker


def test_a_loop_runs_to_its_result_in_no_time() -> None:
    run = play(*_swap(countdown(loop_delay=timedelta(hours=1)), 5))
    assert run.result() == "lift-off"
    assert run.step("count").iterations == 6
    assert run.elapsed_s == pytest.approx(5 * 3600)
    assert sum(isinstance(each.event, StepContinued) for each in run.history) == 5


def test_a_run_queued_in_a_lane_begins_later_and_its_time_counts_from_there() -> None:
    workflow = Workflow("slow", timeout=timedelta(seconds=60))
    workflow.wait_for_signal("ready", signal="go")
    signals = [Signal("go", None, after_s=1030)]
    run = play(workflow, None, Worker(), queued_s=1000, signals=signals)
    assert (run.status, run.elapsed_s) == ("completed", pytest.approx(1030))
    assert [type(each.event) for each in run.history][1] is LaneGranted
    late = play(workflow, None, Worker(), queued_s=1000, signals=[Signal("go", None, 1061)])
    assert (late.status, late.reason) == ("failed", "run_timeout")
    assert "60 s after its start in its lane" in late.message
    early = play(workflow, None, Worker(), queued_s=1000, signals={"go": None})
    assert (early.status, early.elapsed_s) == ("completed", pytest.approx(1000))
    gone = play(workflow, None, Worker(), queued_s=1000, cancel_after_s=5)
    assert (gone.status, gone.elapsed_s) == ("cancelled", pytest.approx(5))


def test_the_bound_stops_the_loop_with_its_reason_and_keeps_the_last_output() -> None:
    run = play(*_swap(countdown(max_iterations=3), 9))
    assert (run.status, run.reason) == ("failed", "max_iterations")
    assert (run.step("count").iterations, run.step("count").output) == (3, 6)
    with pytest.raises(RunFailed) as failed:
        run.result()
    assert (failed.value.step, failed.value.iteration) == ("count", 3)
    assert "treadle run" not in str(failed.value)
    assert repr(run).startswith("<SimulatedRun countdown: failed after 0 s, step 'count': max_iter")


def test_wrap_up_gives_one_last_iteration() -> None:
    run = play(*_swap(countdown(max_iterations=3, on_limit="wrap_up"), 9))
    assert run.result() == "stopped at 6"
    assert run.step("count").iterations == 4


def test_a_parked_run_stands_still_until_it_is_resumed_with_a_raised_bound() -> None:
    workflow, worker = countdown(max_iterations=3, on_limit="park")
    parked = play(workflow, 9, worker)
    assert (parked.status, parked.reason) == ("parked", "max_iterations")
    with pytest.raises(RunConflict, match=r"is parked at its bound max_iterations.*Resume\(\.\.\."):
        parked.result()
    resumed = play(workflow, 9, worker, resume=Resume(after_s=7 * 24 * 3600, add_iterations=10))
    assert resumed.result() == "lift-off"


def test_a_step_whose_attempts_are_used_up_parks_and_a_resume_gives_them_again() -> None:
    workflow = Workflow("billing")
    workflow.task("charge", retry=Retry(max_attempts=2, delay_s=1, jitter=0, on_exhausted="park"))
    worker = Worker()

    @worker.handler("charge")
    async def charge(ctx: TaskContext[None]) -> int:
        if ctx.attempt < 4:
            raise ConnectionError("the bank does not answer")
        return ctx.attempt

    parked = play(workflow, None, worker)
    assert (parked.status, parked.reason) == ("parked", "max_attempts")
    with pytest.raises(RunConflict, match=r"the last failed with ConnectionError.*Resume\(\.\.\."):
        parked.result()
    assert play(workflow, None, worker, resume=Resume(after_s=3600)).result() == 4


def test_max_duration_cuts_an_iteration_that_hangs() -> None:
    workflow = Workflow("hang")
    workflow.agent_loop("wait", max_iterations=5, max_duration=timedelta(minutes=5))
    worker = Worker()

    @worker.handler("wait")
    async def wait(ctx: LoopContext[None]) -> object:
        await asyncio.sleep(7 * 24 * 3600)
        return ctx.complete(None)

    run = play(workflow, None, worker)
    assert (run.status, run.reason) == ("failed", "max_duration")
    assert run.elapsed_s == pytest.approx(300)


def test_a_timeout_is_retried_by_the_policy_and_checkpoints_survive_it() -> None:
    workflow = Workflow("retry")
    workflow.task(
        "work", timeout=timedelta(seconds=10), retry=Retry(max_attempts=3, delay_s=60, jitter=0)
    )
    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> object:
        done = await ctx.load_checkpoint(list) or []
        await ctx.checkpoint([*done, ctx.attempt])
        if ctx.attempt == 1:
            await asyncio.sleep(3600)
        if ctx.attempt == 2:
            raise ValueError("not yet")
        return done

    run = play(workflow, None, worker)
    assert run.result() == [1, 2]
    failures = [each.event for each in run.history if isinstance(each.event, StepFailed)]
    assert [failure.failure.type for failure in failures] == ["timeout", "ValueError"]
    assert sum(isinstance(each.event, TimerFired) for each in run.history) == 2


def test_steps_fan_out_and_in_and_a_plain_function_runs_in_a_thread() -> None:
    workflow = Workflow("fan")
    first = workflow.task("first", "double")
    both = [workflow.task(name, "double", after=[first]) for name in ("left", "right")]
    workflow.task("join", after=both)
    worker = Worker()

    @worker.handler("double")
    def double(ctx: SyncTaskContext[int]) -> int:
        return ctx.input * 2

    @worker.handler("join")
    async def join(ctx: TaskContext[dict[str, int]]) -> dict[str, int]:
        return ctx.input

    assert play(workflow, 1, worker).result() == {"left": 4, "right": 4}


def test_a_signal_completes_the_step_that_waits_and_without_one_the_run_waits() -> None:
    workflow = Workflow("approval")
    workflow.wait_for_signal("approved", signal="approve", timeout=timedelta(days=2))
    assert play(workflow, None, Worker(), signals={"approve": "yes"}).result() == "yes"
    late = play(workflow, None, Worker(), signals=[Signal("approve", "yes", after_s=3 * 86400)])
    assert (late.status, late.reason) == ("failed", "timeout")
    endless = Workflow("endless")
    endless.wait_for_signal("approved", signal="approve")
    waiting = play(endless, None, Worker())
    assert waiting.status == "running"
    assert waiting.waits_for == ("step 'approved' waits for the signal 'approve'",)
    assert repr(waiting) == f"<SimulatedRun endless: running, {waiting.waits_for[0]}>"
    with pytest.raises(RunConflict, match=r"no result yet.*Give simulate `signals=") as told:
        waiting.result()
    assert "treadle run" not in str(told.value)


def test_a_cancel_reaches_the_handler() -> None:
    workflow = Workflow("cancelled")
    workflow.task("work")
    worker = Worker()
    stopped: list[str] = []

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            stopped.append(ctx.run)
            raise

    run = play(workflow, None, worker, cancel_after_s=5)
    assert run.status == "cancelled"
    assert len(stopped) == 1
    with pytest.raises(RunCancelled):
        run.result()


def test_mistakes_are_told_as_a_client_or_worker_would() -> None:
    workflow = Workflow("lonely")
    workflow.task("work")
    with pytest.raises(HandlerError, match="does not handle"):
        play(workflow, None, Worker())
    with pytest.raises(InvalidDefinition):
        play(Workflow("empty"), None, Worker())


def test_a_handler_that_is_missing_for_a_later_step_is_told_like_one_for_the_first() -> None:
    workflow, worker = countdown()
    workflow.task("report", after=["count"])
    with pytest.raises(HandlerError, match="step 'report' has task type 'report'"):
        play(workflow, 1, worker)
    misspelt = Workflow("misspelt")
    misspelt.task("count", "cuont")
    with pytest.raises(HandlerError, match=r"Did you mean 'count'\? If not, register it"):
        play(misspelt, 1, worker)


def test_a_handler_whose_input_nobody_gave_fails_with_that_and_not_with_a_null() -> None:
    run = play(*_swap(countdown(), None))
    assert run.reason == "InvalidPayload"
    assert "there is none, and its handler takes int" in run.message and "--input" in run.message


def test_what_an_answering_function_raises_ends_the_simulation() -> None:
    workflow = Workflow("asking")
    workflow.agent_loop("ask", max_iterations=2)
    worker = Worker()

    @worker.handler("ask")
    async def ask(ctx: LoopContext[None]) -> object:
        return ctx.wait("an answer", asks=[Ask(id="a", text="Which?")])

    def broken(asked: Ask) -> Reply:
        raise LookupError(asked.id)

    with pytest.raises(LookupError, match="a"):
        play(workflow, None, worker, answers=broken)


def test_now_sets_the_clock_that_handlers_see() -> None:
    workflow = Workflow("clock")
    workflow.agent_loop("tell", max_iterations=2, max_duration=timedelta(hours=1))
    worker = Worker()

    @worker.handler("tell")
    async def tell(ctx: LoopContext[None]) -> object:
        assert ctx.deadline is not None
        return ctx.complete(ctx.deadline.isoformat())

    run = play(workflow, None, worker, now="2030-05-01T12:00:00+00:00")
    assert run.result() == "2030-05-01T13:00:00+00:00"


def _swap(pair: tuple[Workflow, Worker], value: object) -> tuple[Workflow, object, Worker]:
    workflow, worker = pair
    return workflow, value, worker


@pytest.mark.parametrize("queued_s", [0, 60])
def test_a_scheduled_run_begins_at_its_time_and_then_waits_for_its_lane(queued_s: float) -> None:
    workflow, worker = countdown(loop_delay=1)
    day_s = 86_400
    run = play(workflow, 3, worker, start_after_s=day_s, queued_s=queued_s)
    assert run.result() == "lift-off"
    assert day_s + queued_s + 3 <= run.elapsed_s < day_s + queued_s + 4


def test_a_scheduled_run_that_is_cancelled_takes_no_step() -> None:
    workflow, worker = countdown()
    run = play(workflow, 3, worker, start_after_s=3600, cancel_after_s=60)
    assert run.status == "cancelled"
    assert run.elapsed_s < 61
