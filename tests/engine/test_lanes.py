"""Of the runs of a lane one is active, the others follow in the order of their requests.
Method: runs on a real server whose only step is settled by hand, one engine or two."""

from __future__ import annotations

import asyncio
import itertools
import sys
import time
from typing import Any

import msgspec
import pytest
from tests.crash.chain import TASK_TYPE
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.engine.retention import Retention
from treadle.sdk import RunConflict, UserError
from treadle.sdk.lanes import LaneRecord, lane_key
from treadle.sdk.messages import Failure, Parked, StepCompleted, StepFailed, StepWaiting, Task
from treadle.sdk.run import RunDocument

LANE = "conversation:42"


async def start(stand: Stand, *runs: str, lane: str | None = LANE, **options: Any) -> None:
    """Request runs one after another."""
    for run in runs:
        await stand.client.start(loop(**options), id=run, lane=lane)


async def settle(stand: Stand, run: str, kind: type[Any] = StepCompleted, **fields: Any) -> None:
    """Settle the step of a run that is active."""
    token = (await stand.holds(Task, run)).token
    event = kind(step="loop", type=TASK_TYPE, token=token, head=token, **fields)
    await stand.publish(event, run)


async def finish(stand: Stand, *runs: str) -> None:
    """Complete runs one after another."""
    for run in runs:
        await settle(stand, run)
        await stand.ended(run)


async def stands(stand: Stand, run: str) -> str:
    """Return the status of a run that stays what it is."""
    await stand.quiet(0.2)
    document = await stand.document(run)
    assert document is not None
    return document.status


async def stored(stand: Stand) -> dict[str, int]:
    """Return how many messages have ever been stored, by stream."""
    s = stand.subjects
    names = (s.events_stream, s.runs_stream, s.steps_stream, s.lanes_stream, s.timers_stream)
    return {name: int((await stand.state(name))["last_seq"]) for name in names}


def test_the_second_run_of_a_lane_starts_when_the_first_has_ended(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2", "r3")
        await stand.holds(Task, "r1")
        await stand.status("r2", "queued")
        await stand.status("r3", "queued")
        assert await stand.register("r2") is None
        await finish(stand, "r1")
        await stand.holds(Task, "r2")
        assert await stands(stand, "r3") == "queued"
        await finish(stand, "r2", "r3")

    play(story)


def test_runs_of_other_lanes_and_of_none_wait_for_nobody(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2")
        await start(stand, "other", lane="conversation:43")
        await start(stand, "none", lane=None)
        await finish(stand, "other", "none", "r1", "r2")

    play(story)


def _ends(run: str) -> dict[str, Any]:
    """Ways in which an active run ends, by their name."""
    bad = Failure("ValueError", "for good", retryable=False)

    async def fails(stand: Stand) -> None:
        await settle(stand, run, StepFailed, failure=bad)

    async def is_cancelled(stand: Stand) -> None:
        await stand.holds(Task, run)
        await stand.client.cancel(run)

    async def times_out(stand: Stand) -> None:
        await stand.holds(Task, run)

    return {"fails": fails, "is cancelled": is_cancelled, "times out": times_out}


@pytest.mark.parametrize("way", ["fails", "is cancelled", "times out"])
def test_however_a_run_ends_the_next_one_starts(play: Play, way: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", **({"run_timeout": 1} if way == "times out" else {}))
        await start(stand, "r2")
        await _ends("r1")[way](stand)
        await stand.ended("r1")
        await finish(stand, "r2")

    play(story)


def test_a_queued_run_that_is_cancelled_is_passed_over(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2", "r3")
        await stand.status("r2", "queued")
        await stand.client.cancel("r2")
        assert (await stand.ended("r2")).steps == {}
        assert await stands(stand, "r3") == "queued"
        await finish(stand, "r1", "r3")

    play(story)


def test_a_run_that_waits_or_is_parked_keeps_its_lane(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2")
        await settle(stand, "r1", StepWaiting, reason="for news")
        await stand.holds(Parked, "r1")
        await stand.status("r1", "parked")
        assert await stands(stand, "r2") == "queued"
        await stand.client.resume("r1")
        await finish(stand, "r1", "r2")

    play(story)


def test_the_time_a_run_may_take_counts_from_its_start_in_the_lane(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1")
        await start(stand, "r2", run_timeout=600)
        assert (await stand.status("r2", "queued")).deadline_ms == 0
        await finish(stand, "r1")
        document = await stand.status("r2", "running")
        assert document.deadline_ms == document.steps["loop"].started_ms + 600_000
        assert document.steps["loop"].started_ms > document.requested_ms
        await finish(stand, "r2")

    play(story)


def test_a_workflow_that_is_not_registered_holds_no_lane(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await start(stand, "r1", "r2")
        (request,) = await stand.events("r1")
        versions = stand.subjects.workflow_versions("one-loop")
        await stand.js.purge(stand.subjects.workflows_stream, versions)
        await stand.client.register(loop(max_iterations=7))
        await stand.client.start(loop(max_iterations=7), id="r3", lane=LANE)
        await stand.engine()
        assert (await stand.ended("r1")).requested == request.sequence
        await stand.ended("r2")
        await finish(stand, "r3")

    play(story)


def test_signals_sent_to_a_queued_run_are_kept_and_counted_once(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2")
        await stand.status("r2", "queued")
        await stand.client.signal("r2", "hint", 1, id="s1")
        await stand.client.signal("r2", "hint", 1, id="s1")
        assert await stands(stand, "r2") == "queued"
        await finish(stand, "r1", "r2")
        assert (await stand.ended("r2")).signals_received == 1

    play(story)


def test_requests_stored_before_any_engine_ran_are_taken_in_their_order_by_two(play: Play) -> None:
    async def story(stand: Stand) -> None:
        names = [f"r{number}" for number in range(12)]
        await start(stand, *names)
        await asyncio.gather(stand.engine(), stand.engine())
        documents: list[RunDocument] = []
        for name in names:
            await settle(stand, name)
            documents.append(await stand.ended(name))
        for before, after in itertools.pairwise(documents):
            assert before.ended_ms <= after.steps["loop"].started_ms

    play(story)


def test_a_run_without_a_lane_stores_what_it_always_did_and_a_lone_one_a_note_more(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        s = stand.subjects
        costs: list[dict[str, int]] = []
        for run, lane in (("first", None), ("none", None), ("lone", LANE), ("again", LANE)):
            before = await stored(stand)
            await start(stand, run, lane=lane)
            await finish(stand, run)
            await stand.quiet(0.2)
            after = await stored(stand)
            costs.append({name: after[name] - before[name] for name in after})
        assert costs[0] == costs[1]
        assert costs[1][s.lanes_stream] == 0
        assert costs[2] == costs[3] == {**costs[1], s.lanes_stream: 1}

    play(story)


# ---------------------------------------------------------------- what time tells


async def swept(stand: Stand, run: str, *statuses: str) -> None:
    """Wait for a status that only a sweep brings about."""
    await stand.status(run, *statuses, timeout_s=25)


@pytest.fixture
def quick_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep often: what is waited for is the sweep."""
    monkeypatch.setattr("treadle.engine.lanes.SWEEP_S", 0.3)


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize("is_readable", [True, False])
def test_a_request_that_was_set_aside_is_a_run_that_failed_and_frees_its_lane(
    play: Play, monkeypatch: pytest.MonkeyPatch, is_readable: bool
) -> None:
    monkeypatch.setattr("treadle.engine.intake.POISON_DELIVERIES", 1)

    async def story(stand: Stand) -> None:
        s = stand.subjects
        if is_readable:
            await start(stand, "bad")
            (request,) = await stand.events("bad")
            # Its definition cannot be read, so that whoever handles the request fails.
            key = s.workflow_version("one-loop", msgspec.json.decode(request.data)["definition"])
            await stand.js.store(key, b"no json")
        else:
            await stand.js.store(s.request("bad", lane_key(LANE)), b"no json")
        await stand.client.start(loop(max_iterations=9), id="good", lane=LANE)
        await stand.engine()
        await stand.letter("bad")
        await swept(stand, "bad", "failed")
        document = await stand.document("bad")
        assert document is not None and document.failure is not None
        reason = "StoredUnreadable" if is_readable else "request_set_aside"
        assert (document.failure.type, document.lane) == (reason, LANE)
        await finish(stand, "good")

    play(story)


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize("body", [b"", b"no json", b'{"run":1,"status":[]}'])
def test_a_holder_whose_document_nobody_can_read_frees_its_lane(play: Play, body: bytes) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2")
        await stand.status("r2", "queued")
        await stand.js.store(stand.subjects.run_document("r1"), body)
        await finish(stand, "r2")

    play(story)


@pytest.mark.usefixtures("quick_sweeps")
def test_a_holder_whose_document_and_events_were_deleted_frees_its_lane(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2")
        await stand.status("r2", "queued")
        s = stand.subjects
        await stand.js.purge(s.events_stream, s.events_of_run("r1"))
        await stand.js.purge(s.runs_stream, s.run_document("r1"))
        await finish(stand, "r2")

    play(story)


@pytest.mark.usefixtures("quick_sweeps")
def test_a_holder_whose_definition_is_gone_fails_and_frees_its_lane(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("core.apply", "lanes"):
        monkeypatch.setattr(sys.modules[f"treadle.engine.{module}"], "DEFINITION_GONE_MS", 100)

    async def story(stand: Stand) -> None:
        first = await stand.engine()
        await start(stand, "r1")
        await stand.client.start(loop(max_iterations=9), id="r2", lane=LANE)
        await stand.status("r2", "queued")
        await stand.stop(first)  # It knows the definition.
        request = msgspec.json.decode((await stand.events("r1"))[0].data)
        key = stand.subjects.workflow_version("one-loop", request["definition"])
        await stand.js.purge(stand.subjects.workflows_stream, key)
        await stand.engine()
        await swept(stand, "r1", "failed")
        document = await stand.document("r1")
        assert document is not None and document.failure is not None
        assert document.failure.type == "unknown_workflow"
        await finish(stand, "r2")

    play(story)


@pytest.mark.usefixtures("quick_sweeps")
@pytest.mark.parametrize("record", [b"no json", b'{"lane":"conversation:42","waiting":true}'])
def test_a_grant_that_was_lost_is_given_again_whatever_the_record_says(
    play: Play, record: bytes
) -> None:
    async def story(stand: Stand) -> None:
        first = await stand.engine()
        await start(stand, "r1", "r2")
        await stand.status("r2", "queued")
        await stand.quiet(0.2)
        await stand.stop(first)
        # The first run ends, and nobody tells the second one.
        document = await stand.document("r1")
        assert document is not None
        ended = msgspec.structs.replace(document, status="cancelled", ended_ms=1)
        await stand.js.store(stand.subjects.run_document("r1"), msgspec.json.encode(ended))
        await stand.js.store(stand.subjects.lane(lane_key(LANE)), record)
        await stand.engine()
        await finish(stand, "r2")

    play(story)


def test_retention_of_the_runs_before_leaves_the_lane_as_it_is(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2", "r3")
        await finish(stand, "r1")
        await stand.holds(Task, "r2")
        await stand.quiet(0.2)
        retention = Retention(stand.js, stand.subjects, keep_s=0.001)
        assert await retention.sweep(round(time.time() * 1000) + 50) == 1
        await start(stand, "r1")  # The same id, a second life, at the end of the lane.
        assert await stands(stand, "r1") == "queued"
        await finish(stand, "r2", "r3", "r1")

    play(story)


@pytest.mark.usefixtures("quick_sweeps")
def test_the_record_of_a_lane_goes_after_the_last_of_its_runs(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("treadle.engine.lanes.IDLE_MS", 0)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1")
        await finish(stand, "r1")
        s = stand.subjects

        async def records() -> int:
            return int((await stand.state(s.lanes_stream))["messages"])

        await stand.until("a record", records, lambda count: count == 1)
        await stand.quiet(0.5)
        assert await records() == 1, "its run is kept"
        retention = Retention(stand.js, s, keep_s=0.001)
        assert await retention.sweep(round(time.time() * 1000) + 50) == 1
        await stand.until("no record", records, lambda count: count == 0)

    play(story)


# ---------------------------------------------------------------- people


def test_a_queued_run_says_what_is_before_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2", "r3")
        await stand.status("r3", "queued")
        view = await stand.client.get("r3")
        assert (view.status, view.lane) == ("queued", LANE)
        texts = [note.text for note in view.notes]
        assert texts == [f"queued in lane {LANE!r} behind 2 runs, held by r1"]
        listed = {each.id: each for each in await stand.client.list(status="queued")}
        assert set(listed) == {"r2", "r3"}
        assert listed["r3"].ahead == view.ahead
        assert listed["r2"].ahead is not None
        assert (listed["r2"].ahead.count, listed["r2"].ahead.holder) == (1, "r1")
        watched = [event.kind async for event in _until_ended(stand, "r3")]
        assert watched.index("run.queued") < watched.index("run.lane_granted")
        assert watched.index("run.lane_granted") < watched.index("step.started")

    play(story)


async def _until_ended(stand: Stand, run: str) -> Any:
    async with asyncio.TaskGroup() as group:
        events = stand.client.watch(run)
        begun = await anext(events)
        group.create_task(finish(stand, "r1", "r2", "r3"))
        yield begun
        async for event in events:
            yield event


@pytest.mark.parametrize("lane", ["", "x" * 201, "a\nb", "\ud800", "tab\t", 42])
def test_what_cannot_name_a_lane_is_refused_with_what_can(play: Play, lane: Any) -> None:
    async def story(stand: Stand) -> None:
        with pytest.raises(UserError, match="1 to 200 printable characters"):
            await stand.client.start(loop(), id="r1", lane=lane)
        assert await stand.events("r1") == []

    play(story)


@pytest.mark.parametrize("lane", ["a b.*.>", "ünïcode 会话", "x" * 200])
def test_any_printable_text_names_a_lane(play: Play, lane: str) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2", lane=lane)
        await stand.status("r2", "queued")
        await finish(stand, "r1", "r2")

    play(story)


def test_one_run_id_in_two_lanes_is_a_conflict(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await start(stand, "r1")
        await start(stand, "r1")
        with pytest.raises(RunConflict, match="started in lane 'conversation:42', not in lane 'b'"):
            await start(stand, "r1", lane="b")
        with pytest.raises(RunConflict, match="not without a lane"):
            await start(stand, "r1", lane=None)

    play(story)


@pytest.mark.usefixtures("quick_sweeps")
def test_a_request_on_the_subject_of_another_lane_is_set_aside(play: Play) -> None:
    """The order in a lane is that of its subject, so a request that lies would have no place."""

    async def story(stand: Stand) -> None:
        await start(stand, "r1", lane="a")
        (request,) = await stand.events("r1")
        await stand.js.store(stand.subjects.request("liar", lane_key("b")), request.data)
        await stand.js.store(stand.subjects.event("liar2"), request.data)
        await stand.engine()
        assert (await stand.letter("liar")).reason == "corrupt_event"
        assert (await stand.letter("liar2")).reason == "corrupt_event"
        await start(stand, "r2", lane="b")
        await finish(stand, "r1", "r2")

    play(story)


def test_a_record_says_how_far_its_lane_has_come(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await start(stand, "r1", "r2")
        await stand.status("r2", "queued")

        async def record() -> LaneRecord | None:
            s = stand.subjects
            found = await stand.js.last(s.lanes_stream, s.lane(lane_key(LANE)))
            return msgspec.json.decode(found.data, type=LaneRecord) if found else None

        waiting = LaneRecord(lane=LANE, waiting=True)
        await stand.until("it waits", record, lambda it: it == waiting)
        first, second = [(await stand.events(run))[0].sequence for run in ("r1", "r2")]
        await finish(stand, "r1")
        waiting = LaneRecord(lane=LANE, after=first, waiting=True)
        await stand.until("one is over", record, lambda it: it == waiting)
        await finish(stand, "r2")
        over = LaneRecord(lane=LANE, after=second)
        await stand.until("both are over", record, lambda it: it == over)

    play(story)
