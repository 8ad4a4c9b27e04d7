"""A scheduled run is there at once, takes nothing, and begins at its time, whatever happens until.
Method: engines in the test's own loop on a real server; steps are settled by hand."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.crash.chain import TASK_TYPE
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import RunCancelled, RunConflict, Workflow
from treadle.sdk.lanes import lane_key
from treadle.sdk.messages import Failure, LaneEntered, StepCompleted, Task

SOON_S = 0.4
LANE = "report:eu"


def in_an_hour() -> datetime:
    return datetime.now(UTC) + timedelta(hours=1)


async def settle(stand: Stand, run: str) -> None:
    token = (await stand.holds(Task, run)).token
    await stand.publish(
        StepCompleted(step="loop", type=TASK_TYPE, token=token, head=token, iteration=0), run
    )
    await stand.ended(run)


async def timers(stand: Stand) -> int:
    return await stand.js.count(stand.subjects.timers_stream, stand.subjects.all_timers)


def test_until_its_time_a_run_is_seen_and_holds_nothing_and_a_cancel_ends_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        at = in_an_hour()
        at_ms = round(at.timestamp() * 1000)
        run = await stand.client.start(loop(), id="run", lane=LANE, start_at=at)
        await stand.status("run", "scheduled")
        page = await stand.client.list_runs(status="scheduled")
        assert [view.id for view in page.runs] == ["run"]
        view = await run.get()
        assert (view.status, view.starts_ms) == ("scheduled", at_ms)
        told = (await run.explain()).main
        assert (told.kind, told.until_ms) == ("scheduled", at_ms)
        assert f"enters lane {LANE!r} then" in told.text
        (span,) = (await stand.client.timeline("run")).spans
        assert (span.kind, span.end_ms) == ("scheduled", 0)
        # Nobody waits in the lane for it.
        await stand.client.start(loop(), id="other", lane=LANE)
        await settle(stand, "other")
        assert await stand.register("run") is None
        await stand.until("its timer", lambda: timers(stand), lambda n: n == 1)
        await run.cancel("not any more")
        with pytest.raises(RunCancelled, match="not any more"):
            await run.result(timeout_s=10)
        await stand.until("no timer", lambda: timers(stand), lambda n: n == 0)

    play(story)


def test_it_begins_at_its_time_by_an_engine_that_started_later(play: Play) -> None:
    async def story(stand: Stand) -> None:
        first = await stand.engine()
        run = await stand.client.start(loop(run_timeout=60), id="run", start_after=SOON_S)
        scheduled = await stand.status("run", "scheduled")
        await stand.stop(first)
        await stand.engine()
        token = (await stand.holds(Task)).token
        stored = await stand.js.get(stand.subjects.steps_stream, token)
        assert stored is not None
        assert stored.time_ms >= scheduled.starts_ms == scheduled.requested_ms + SOON_S * 1000
        begun = await stand.status("run", "running")
        assert begun.deadline_ms >= scheduled.starts_ms + 60_000
        await settle(stand, "run")
        kinds = [event.kind async for event in run.watch()]
        assert kinds.index("run.scheduled") < kinds.index("step.started")
        span = next(
            each for each in (await stand.client.timeline("run")).spans if each.kind == "scheduled"
        )
        assert (span.begin_ms, span.end_ms) == (scheduled.requested_ms, scheduled.starts_ms)

    play(story)


def test_in_its_lane_it_comes_behind_all_that_were_requested_until_its_time(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await stand.client.start(loop(), id="late", lane=LANE, start_after=SOON_S)
        for run in ("holder", "second"):
            await stand.client.start(loop(), id=run, lane=LANE)
        late = await stand.until(
            "late has entered",
            lambda: stand.document("late"),
            lambda run: run is not None and run.placed > 0,
        )
        assert late is not None
        assert late.status == "queued"
        explained = await stand.client.explain("late")
        assert explained.main.kind == "lane_queued"
        assert "behind 2 runs" in explained.main.text
        await stand.client.start(loop(), id="last", lane=LANE)
        for run in ("holder", "second", "late", "last"):
            await settle(stand, run)

    play(story)


def test_of_a_workflow_with_places_it_takes_one_when_it_is_time(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("few", concurrency=2)
        workflow.agent_loop("loop", TASK_TYPE, max_iterations=3)
        await stand.client.start(workflow, id="late", start_after=SOON_S)
        for run in ("first", "second"):
            await stand.client.start(workflow, id=run)
            await stand.holds(Task, run)
        await stand.status("late", "queued")
        await settle(stand, "second")
        await settle(stand, "late")
        await settle(stand, "first")

    play(story)


def test_an_entry_that_is_stored_twice_is_one_place(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), id="run", lane=LANE, start_after=SOON_S)
        scheduled = await stand.status("run", "scheduled")
        request = stand.subjects.request("run", lane_key(LANE))
        entry = LaneEntered(lane=LANE, request=scheduled.requested)
        await stand.holds(Task, "run")
        # An engine that died after the first one would store it again.
        await stand.js.store(request, msgspec.json.encode(entry))
        await stand.client.start(loop(), id="next", lane=LANE)
        await stand.status("next", "queued")
        await settle(stand, "run")
        await settle(stand, "next")

    play(story)


@pytest.mark.parametrize("policy", ["skip", "cancel_older"])
def test_a_singleton_looks_for_others_when_it_is_time(play: Play, policy: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("one", singleton=policy)  # type: ignore[arg-type]
        workflow.agent_loop("loop", TASK_TYPE, max_iterations=3)
        late = await stand.client.start(workflow, id="late", start_after=SOON_S)
        await stand.client.start(workflow, id="other")
        await stand.holds(Task, "other")
        loser, winner = ("late", "other") if policy == "skip" else ("other", "late")
        ended = await stand.status(loser, "cancelled")
        assert ended.failure is not None
        assert ended.failure.type == "singleton"
        assert f"{winner!r}" in ended.failure.message
        await settle(stand, winner)
        assert (await late.get()).starts_ms > 0

    play(story)


def test_a_pause_before_its_time_holds_it_until_it_is_resumed(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), id="run", start_after=SOON_S)
        await stand.status("run", "scheduled")
        await run.pause("the shop is closed")
        await stand.status("run", "paused")
        assert (await run.explain()).main.command == "treadle run resume run"
        await run.resume()
        await settle(stand, "run")

    play(story)


def test_a_pause_that_is_over_before_its_time_changes_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), id="run", start_after=SOON_S)
        await stand.status("run", "scheduled")
        await run.pause()
        await run.resume()
        await settle(stand, "run")

    play(story)


def test_a_retry_of_a_run_that_was_scheduled_begins_at_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), id="run", start_after=SOON_S, lane=LANE)
        token = (await stand.holds(Task)).token
        await stand.fails(token, Failure("ValueError", "for good", retryable=False))
        await stand.ended()
        again = await run.retry()
        requested = await stand.status(again.id, "running")
        assert requested.starts_ms == 0
        await settle(stand, again.id)

    play(story)


def test_a_start_that_is_repeated_is_the_same_run_and_another_time_is_a_conflict(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        at = in_an_hour()
        for _ in range(2):
            assert (await stand.client.start(loop(), id="run", start_at=at)).id == "run"
        with pytest.raises(RunConflict, match="not free again after a cancel") as refused:
            await stand.client.start(loop(), id="run", start_at=at + timedelta(minutes=1))
        assert "choose another run id" in str(refused.value)
        with pytest.raises(RunConflict, match="not at once"):
            await stand.client.start(loop(), id="run")

    play(story)
