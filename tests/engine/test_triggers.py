"""A cron trigger starts one run for each firing, whoever is up, and whatever is changed meanwhile.
Method: a real server, engines in this process. A firing is brought about by writing an earlier
``next_ms`` into the trigger, as if time had passed; nothing waits for a minute to be over."""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop, open_stand

from treadle.engine.overdue import OVERDUE_MS, Overdue
from treadle.engine.timers import schedule
from treadle.engine.triggers import Triggers
from treadle.sdk import UserError
from treadle.sdk.client import Cron
from treadle.sdk.errors import UnknownTrigger
from treadle.sdk.messages import RunRequested
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.triggers.naming import run_id
from treadle.sdk.triggers.times import next_after
from treadle.sdk.triggers.trigger import CatchUp, Trigger, TriggerDue

YEARLY = Cron("0 0 1 1 *")
HOUR_MS = 3_600_000
_request = msgspec.json.Decoder(RunRequested)
_trigger = msgspec.json.Decoder(Trigger)


async def stored(stand: Stand, name: str = "nightly") -> tuple[Trigger, int]:
    """Return a trigger and its revision."""
    s = stand.subjects
    found = await stand.js.last(s.workflows_stream, s.trigger(name))
    assert found is not None
    return _trigger.decode(found.data), found.sequence


async def put(stand: Stand, name: str = "nightly", **changes: object) -> None:
    """Change a trigger by hand, over whatever an engine writes at the same time."""

    async def tried() -> bool:
        trigger, revision = await stored(stand, name)
        data = msgspec.json.encode(msgspec.structs.replace(trigger, **changes))
        subject = stand.subjects.trigger(name)
        return isinstance(await stand.js.attempt(subject, data, expected=revision), int)

    await stand.until("the trigger is written", tried, bool)


async def settled(stand: Stand, name: str = "nightly") -> Trigger:
    """Wait until a trigger has nothing due, and its schedule is set to what is next."""

    async def read() -> tuple[Trigger, int]:
        trigger, _ = await stored(stand, name)
        return trigger, await scheduled(stand, name)

    def is_it(found: tuple[Trigger, int]) -> bool:
        trigger, due_ms = found
        if trigger.paused:
            return not trigger.due and not due_ms
        return not trigger.due and trigger.next_ms > 0 and due_ms == trigger.next_ms

    return (await stand.until("the trigger is settled", read, is_it))[0]


async def scheduled(stand: Stand, name: str = "nightly") -> int:
    """Return for when a trigger's schedule is set; 0 if it is not."""
    s = stand.subjects
    found = await stand.js.last(s.timers_stream, s.trigger_timer(name))
    return msgspec.json.decode(found.data, type=TriggerDue).due_ms if found else 0


async def runs(stand: Stand) -> list[str]:
    """Return the ids of all runs that were ever requested, once for each request."""
    events = stand.js.read(stand.subjects.events_stream, stand.subjects.all_events)
    found: list[str] = []
    async for event in events:
        if b"run.requested" in event.data:
            found.append(stand.subjects.parse_event(event.subject).run)
    return found


async def create(stand: Stand, on: Cron = YEARLY, name: str = "nightly", **options: object) -> None:
    await stand.client.triggers.create(name, loop(), on, **options)  # type: ignore[arg-type]


async def server_ms(stand: Stand) -> int:
    return await Triggers(stand.js, stand.subjects).now_ms()


@pytest.mark.slow
def test_a_firing_starts_one_run_although_two_engines_handle_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await create(stand, Cron("@every 1s"), input={"days": 1}, metadata={"team": "x"})
        await stand.until("three runs", lambda: runs(stand), lambda found: len(found) >= 3)
        await stand.client.triggers.pause("nightly")
        trigger = await settled(stand)
        started = await runs(stand)
        assert len(started) == len(set(started))
        times_ms = [trigger.fired_ms - 1_000 * n for n in range(3)]
        assert [run_id("nightly", ms) for ms in times_ms] == started[:-4:-1]
        document = await stand.status(started[-1], "running")
        at = document.metadata["scheduled_at"]
        assert document.metadata == {"team": "x", "trigger": "nightly", "scheduled_at": at}
        assert at.replace("-", "").replace(":", "") == started[-1].removeprefix("nightly-")
        request = _request.decode((await stand.events(started[-1]))[0].data)
        assert (request.workflow, bytes(request.input)) == ("one-loop", b'{"days":1}')

    play(story)


def test_a_schedule_that_fires_twice_or_early_starts_nothing_more(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand)
        trigger = await settled(stand)
        for due_ms in (trigger.next_ms, trigger.next_ms, 1):
            fired = msgspec.json.encode(TriggerDue("nightly", due_ms))
            await stand.js.store(stand.subjects.trigger_fired("nightly"), fired)
        await stand.quiet(0.3)
        assert await settled(stand) == trigger
        assert await runs(stand) == []

    play(story)


def test_a_schedule_that_was_replaced_by_an_older_one_is_set_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand)
        trigger = await settled(stand)
        s = stand.subjects
        stale = msgspec.json.encode(TriggerDue("nightly", 1_000))
        headers = schedule(1_000, s.trigger_fired("nightly"))
        await stand.js.store(s.trigger_timer("nightly"), stale, headers=headers)
        assert await settled(stand) == trigger
        assert await runs(stand) == []

    play(story)


@pytest.mark.parametrize("catch_up", ["skip", "last", "all"])
def test_what_was_missed_while_nothing_ran_follows_the_policy(
    play: Play, catch_up: CatchUp
) -> None:
    """Three firings, an hour apart, stood out when the next engine starts."""

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await create(stand, Cron("@every 1h", catch_up=catch_up))
        await settled(stand)
        await stand.stop(engine)
        newest_ms = await server_ms(stand) // HOUR_MS * HOUR_MS
        due = [newest_ms - n * HOUR_MS for n in (2, 1, 0)]
        # Now and then the newest is only seconds ago, and on time.
        is_on_time = await server_ms(stand) - newest_ms < 90_000
        await put(stand, next_ms=due[0])
        await stand.engine()
        trigger = await settled(stand)
        expected = {"skip": due[2:] if is_on_time else [], "last": due[2:], "all": due}[catch_up]
        assert await runs(stand) == [run_id("nightly", ms) for ms in expected]
        assert trigger.next_ms == newest_ms + HOUR_MS
        assert trigger.fired_ms == (expected[-1] if expected else 0)
        left_out = due[: len(due) - len(expected)]
        assert (trigger.missed_from_ms, trigger.missed_to_ms) == (
            (left_out[0], left_out[-1]) if left_out else (0, 0)
        )

    play(story)


def test_firings_begin_when_the_trigger_is_created_also_while_no_engine_runs(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await create(stand, Cron("@every 1s", catch_up="all"))
        s = stand.subjects
        found = await stand.js.last(s.workflows_stream, s.trigger("nightly"))
        assert found is not None
        first_ms = next_after("@every 1s", "UTC", found.time_ms)

        async def past() -> bool:
            return await server_ms(stand) > first_ms

        await stand.until("its first firing is over", past, bool)
        await stand.engine()
        await stand.until("it fires", lambda: runs(stand), bool)
        assert (await runs(stand))[0] == run_id("nightly", first_ms)

    play(story)


def test_another_expression_takes_the_place_of_the_schedule_that_was_set(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, Cron("@every 366d"))
        before = await settled(stand)
        with pytest.raises(UserError, match="exists and is another one"):
            await create(stand, Cron("0 12 * * *", zone="Asia/Tokyo"))
        assert (await stored(stand))[0].on == before.on
        await create(stand, Cron("0 12 * * *", zone="Asia/Tokyo"), replace=True)

        async def is_next() -> int:
            return (await settled(stand)).next_ms

        next_ms = next_after("0 12 * * *", "Asia/Tokyo", await server_ms(stand))
        await stand.until("the schedule is another", is_next, lambda ms: ms == next_ms)
        # What was scheduled before fires all the same: it lost the race with the change.
        fired = msgspec.json.encode(TriggerDue("nightly", before.next_ms))
        await stand.js.store(stand.subjects.trigger_fired("nightly"), fired)
        await stand.quiet(0.3)
        assert await runs(stand) == []

    play(story)


def test_what_does_not_move_the_firings_leaves_them_as_they_are(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand)
        before = await settled(stand)
        revision = (await stored(stand))[1]
        await create(stand)
        assert (await stored(stand))[1] == revision
        await create(stand, input=2, lane="a lane", replace=True)
        after = await settled(stand)
        assert (after.next_ms, bytes(after.input), after.lane) == (before.next_ms, b"2", "a lane")

    play(story)


def test_a_paused_trigger_starts_nothing_and_a_resumed_one_makes_up_for_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, Cron("@every 1h", catch_up="all"))
        await settled(stand)
        await stand.client.triggers.pause("nightly")
        assert (await settled(stand)).next_ms == 0
        view = await stand.client.triggers.get("nightly")
        assert (view.paused, view.next_ms) == (True, ())
        assert view.notes[0].command == "treadle trigger resume nightly"
        # A firing that was under way when it was paused.
        fired = msgspec.json.encode(TriggerDue("nightly", 1))
        await stand.js.store(stand.subjects.trigger_fired("nightly"), fired)
        await stand.client.triggers.resume("nightly")
        resumed = await settled(stand)
        assert resumed.next_ms == next_after("@every 1h", "UTC", await server_ms(stand))
        assert await runs(stand) == []

    play(story)


def test_a_deleted_trigger_is_gone_with_its_schedule_and_its_name_is_free(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand)
        await settled(stand)
        await stand.client.triggers.delete("nightly")
        await stand.until("no schedule", lambda: scheduled(stand), lambda ms: ms == 0)
        assert await stand.client.triggers.list() == ()
        assert list(await stand.client.workflows()) == ["one-loop"]
        with pytest.raises(UnknownTrigger):
            await stand.client.triggers.get("nightly")
        fired = msgspec.json.encode(TriggerDue("nightly", 1))
        await stand.js.store(stand.subjects.trigger_fired("nightly"), fired)
        await create(stand, Cron("0 5 * * *"))
        await settled(stand)
        assert await runs(stand) == []

    play(story)


def test_an_engine_that_starts_again_stores_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await create(stand)
        await settled(stand)
        await stand.stop(engine)
        s = stand.subjects
        names = (s.workflows_stream, s.timers_stream, s.events_stream)
        before = [(await stand.state(name))["last_seq"] for name in names]
        await stand.engine()
        await stand.quiet(0.3)
        assert [(await stand.state(name))["last_seq"] for name in names] == before

    play(story)


def test_a_firing_without_its_workflow_is_told_and_the_next_one_is_set(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, Cron("@every 1h", catch_up="last"))
        await settled(stand)
        s = stand.subjects
        await stand.js.purge(s.workflows_stream, s.workflow_latest("one-loop"))
        newest_ms = await server_ms(stand) // HOUR_MS * HOUR_MS
        await put(stand, next_ms=newest_ms)
        failed = await stand.until(
            "the firing has failed", lambda: settled(stand), lambda found: found.failed_ms > 0
        )
        assert (failed.failed_ms, failed.fired_ms) == (newest_ms, 0)
        assert failed.failure == "workflow 'one-loop' is not registered"
        view = await stand.client.triggers.get("nightly")
        assert ["not registered" in note.text for note in view.notes] == [True, True]
        # Its workflow comes back, and the next firing starts a run.
        await stand.client.register(loop())
        await put(stand, next_ms=newest_ms)
        await stand.status(run_id("nightly", newest_ms), "running")

    play(story)


def test_a_run_that_was_started_by_hand_leaves_the_next_firing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await create(stand, input=7, lane="a lane", metadata={"team": "x"})
        before = await settled(stand)
        handle = await stand.client.triggers.fire("nightly", id="by-hand")
        document = await stand.status(handle.id, "running")
        assert document.metadata == {"team": "x", "trigger": "nightly"}
        assert document.lane == "a lane"
        assert await settled(stand) == before
        assert (await stand.client.triggers.fire("nightly", id="by-hand")).id == "by-hand"
        assert await runs(stand) == ["by-hand"]

    play(story)


def test_a_schedule_that_did_not_fire_is_set_again_by_the_sweep(play: Play) -> None:
    async def story(stand: Stand) -> None:
        s = stand.subjects
        await stand.js.store(
            s.trigger_timer("nightly"), msgspec.json.encode(TriggerDue("nightly", 1_000))
        )
        assert await Overdue(stand.js, s).sweep(OVERDUE_MS + 2_000) == 1

        async def fired() -> object:
            return await stand.js.last(s.timers_stream, s.trigger_fired("nightly"))

        await stand.until("it fires", fired, bool)

    play(story)


def test_a_trigger_that_cannot_be_read_is_told_and_stops_no_other(
    play: Play, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.js.store(stand.subjects.trigger("broken"), b"no JSON")
        await create(stand)
        await settled(stand)
        views = await stand.client.triggers.list()
        assert [(view.name, view.workflow) for view in views] == [
            ("broken", ""),
            ("nightly", "one-loop"),
        ]
        assert "_trigger.broken.t" in views[0].notes[0].text

    with caplog.at_level(logging.ERROR):
        play(story)
    assert "engine.trigger-unreadable trigger=broken" in caplog.text


@pytest.mark.slow
def test_a_firing_that_fell_due_while_the_server_was_away_starts_one_run(
    own_server: NatsServer, namespace: str
) -> None:
    async def story() -> None:
        async with open_stand(Settings(url=own_server.url, namespace=namespace)) as stand:
            await stand.engine()
            await stand.engine()
            await create(stand, Cron("@every 2s"))
            trigger = await settled(stand)
            own_server.kill()

            async def is_over() -> bool:
                return time.time() * 1_000 > trigger.next_ms

            await stand.until("the time of the firing is over", is_over, bool)
            own_server.restart()
            await stand.until("a run", lambda: runs(stand), bool, 20)
            await stand.client.triggers.pause("nightly")
            await settled(stand)
            started = await runs(stand)
            assert len(started) == len(set(started))
            assert started[0] >= run_id("nightly", trigger.next_ms)

    asyncio.run(story())
