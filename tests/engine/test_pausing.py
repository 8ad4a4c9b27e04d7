"""Pause and resume on a real server: what is held, who knows of it, and what clients are told.
Method: engines in the test's own loop, a worker played by hand, so that every window is stepped."""

from __future__ import annotations

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import Workflow
from treadle.sdk.errors import RunConflict
from treadle.sdk.messages import (
    Parked,
    PauseRequested,
    ResumeRequested,
    SignalReceived,
    Task,
    TaskLost,
)
from treadle.worker import TaskContext, Worker


async def held(stand: Stand, iteration: int, since: int = 0) -> int:
    """Wait until the loop is held at an iteration; return the register's sequence."""
    placed = await stand.holds(Parked, since=since)
    assert isinstance(placed.register, Parked)
    assert placed.register.paused
    assert placed.register.task.iteration == iteration
    return placed.token


async def ended(stand: Stand, run: str, step: str) -> None:
    """Wait until a step of a run has completed."""

    async def status() -> str:
        return (await stand.client.get(run)).step(step).status

    await stand.until(f"{step} is over", status, lambda found: found == "completed")


async def marks(stand: Stand) -> list[str]:
    """Return the keys that mark runs as paused."""
    found = stand.js.read(stand.subjects.workflows_stream, stand.subjects.all_pauses)
    return [stored.subject async for stored in found if stored.data]


def test_a_paused_loop_stops_at_its_next_boundary_and_goes_on_from_there(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), id="run")
        first = await stand.holds(Task)
        await run.pause("the shop is closed")
        await stand.status("run", "paused")
        assert await stand.register() == first, "what is under way is left alone"
        await stand.continues(first.token, "next")
        token = await held(stand, 1)
        view = await run.get()
        assert (view.status, view.step("loop").doing) == ("paused", "paused")
        explained = await run.explain()
        assert explained.is_stuck
        assert "the run is paused: the shop is closed" in explained.main.text
        assert explained.main.command == "treadle run resume run"
        await run.resume()
        again = await stand.holds(Task, since=token)
        assert isinstance(again.register, Task)
        assert again.register.iteration == 1
        await stand.completes(again.token, "done")
        assert await run.result(timeout_s=10) == "done"

    play(story)


@pytest.mark.parametrize("when", ["before", "after"])
def test_every_engine_knows_of_a_pause_also_one_that_starts_later(play: Play, when: str) -> None:
    async def story(stand: Stand) -> None:
        first = await stand.engine()
        if when == "before":
            await stand.engine()
        run = await stand.client.start(loop(), id="run")
        placed = await stand.holds(Task)
        await run.pause()
        await stand.status("run", "paused")
        if when == "after":
            await stand.engine()
        # Whoever handled the pause is gone, or one of two.
        await stand.stop(first)
        await stand.continues(placed.token, "next")
        token = await held(stand, 1)
        await stand.publish(TaskLost(step="loop", type="link", token=placed.token))
        await stand.quiet(0.2)
        await run.resume()
        again = await stand.holds(Task, since=token)
        await stand.completes(again.token, 1)
        await stand.ended()

    play(story)


def test_a_paused_run_hears_signals_and_starts_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        done: list[str] = []
        worker = Worker()

        @worker.handler("pack")
        async def pack(ctx: TaskContext[object]) -> str:
            done.append(ctx.step)
            return "packed"

        workflow = Workflow("shop")
        paid = workflow.wait_for_signal("paid", signal="paid")
        workflow.task("pack", after=paid)
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, id="run")
        await stand.status("run", "running")
        await run.pause()
        await stand.status("run", "paused")
        await stand.publish(SignalReceived(name="paid", id="s1"))
        await ended(stand, "run", "paid")
        assert (await run.get()).step("pack").status == "waiting"
        assert done == []
        await run.resume()
        assert await run.result(timeout_s=10) == "packed"
        assert done == ["pack"]

    play(story)


@pytest.mark.slow
def test_what_a_sleep_was_before_begins_with_the_resume_and_nobody_is_asked_earlier(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        release = Workflow("release")
        nap = release.sleep("nap", 0.3)
        gate = release.approval("gate", timeout=600, after=nap)
        told = release.respond("told", after=gate)
        release.wait_for_event("shipped", "shipped", after=told)
        chain = Workflow("chain")
        chain.respond("told", after=chain.sleep("more", 0.1, after=chain.sleep("nap", 0.3)))
        for _ in range(2):
            await stand.engine()
        runs = [await stand.client.start(each, id=each.name) for each in (release, chain)]
        for run in runs:
            await run.pause()
        for run in runs:
            await stand.status(run.id, "paused")
        for run in runs:
            await ended(stand, run.id, "nap")
        assert await stand.client.approvals() == ()
        for run in runs:
            view = await run.get()
            assert view.status == "paused"
            assert {step.status for step in view.steps if step.id != "nap"} == {"waiting"}
            assert (await run.explain()).main.command == f"treadle run resume {run.id}"
        for run in runs:
            for event in (ResumeRequested(), PauseRequested(), ResumeRequested()):
                await stand.publish(event, run.id)
        await stand.ended("chain")
        await stand.until("it is asked", stand.client.approvals, bool)
        await stand.client.approve("release", "gate", "gate")
        await stand.client.publish_event("shipped", {})
        assert (await stand.ended("release")).status == "completed"

    play(story)


def test_a_resume_that_is_asked_before_an_engine_has_paused_the_run_counts(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await stand.client.start(loop(), id="run")
        await run.pause()
        await run.resume()
        await stand.engine()
        placed = await stand.holds(Task)
        await stand.completes(placed.token, "done")
        assert await run.result(timeout_s=10) == "done"

    play(story)


def test_a_pause_that_is_asked_before_an_engine_has_resumed_the_run_counts(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        run = await stand.client.start(loop(), id="run")
        await stand.holds(Task)
        await run.pause()
        await stand.status("run", "paused")
        await stand.stop(engine)
        await run.resume()
        await run.pause("again")
        await run.pause("this one is none: the run is paused already")
        await stand.engine()

        async def reason() -> str:
            view = await run.get()
            return view.pause.reason if view.pause else ""

        await stand.until("it is paused again", reason, lambda found: found == "again")
        await run.cancel()
        await stand.ended()

    play(story)


def test_a_run_is_paused_before_it_begins(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await stand.client.start(loop(), id="run")
        await run.pause()
        await stand.engine()
        await stand.status("run", "paused")
        # The request and the pause may come in one batch: then nothing is ever given out.
        placed = await stand.register()
        if placed is not None and isinstance(placed.register, Task):
            await stand.continues(placed.token, "next")
        token = (await stand.holds(Parked)).token
        await run.resume()
        again = await stand.holds(Task, since=token)
        await stand.completes(again.token, 1)
        await stand.ended()

    play(story)


@pytest.mark.slow
def test_the_runs_timeout_and_a_cancel_end_a_paused_run(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        late = await stand.client.start(loop(run_timeout=1.5), id="late")
        gone = await stand.client.start(loop(), id="gone")
        for run in (late, gone):
            await stand.status(run.id, "running")
            await run.pause()
            await stand.status(run.id, "paused")
        await gone.cancel("not wanted")
        assert (await stand.ended("gone")).status == "cancelled"
        failed = await stand.ended("late")
        assert failed.failure is not None
        assert (failed.status, failed.failure.type) == ("failed", "run_timeout")
        await stand.until("no marks are left", lambda: marks(stand), lambda found: not found)

    play(story)


def test_clients_are_told_what_a_pause_cannot_do(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), id="run")
        placed = await stand.holds(Task)
        await run.pause()
        await stand.status("run", "paused")
        await run.pause()  # Already: it stays as it is.
        with pytest.raises(RunConflict, match="is paused, so its step 'loop' cannot go on alone"):
            await run.resume("loop")
        await run.resume()
        await stand.status("run", "running")
        await stand.completes(placed.token, 1)
        await stand.ended()
        with pytest.raises(RunConflict, match="has ended as completed and cannot be paused"):
            await run.pause()

    play(story)
