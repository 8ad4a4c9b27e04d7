"""A firing is one run and the next one comes, whichever engine dies in it and where.

Real processes; the window is hit by a failpoint. A firing is brought about by writing an earlier
time into the trigger, as if it had passed. The run's id is known before it is started."""

from __future__ import annotations

import msgspec
import pytest
from tests.crash.chain import Baton, seed
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk.client import Cron
from treadle.sdk.triggers.naming import run_id
from treadle.sdk.triggers.trigger import Trigger, TriggerDue

pytestmark = pytest.mark.slow

HOUR_MS = 3_600_000
_trigger = msgspec.json.Decoder(Trigger)


async def stored(stage: Stage) -> tuple[Trigger, int, int]:
    """Return the trigger, its revision and for when its schedule is set."""
    s = stage.subjects
    found = await stage.js.last(s.workflows_stream, s.trigger("hourly"))
    assert found is not None
    timer = await stage.js.last(s.timers_stream, s.trigger_timer("hourly"))
    due_ms = msgspec.json.decode(timer.data, type=TriggerDue).due_ms if timer else 0
    return _trigger.decode(found.data), found.sequence, due_ms


async def is_scheduled(stage: Stage) -> Trigger:
    """Wait until nothing is due, and the schedule is set to what is next."""

    def is_it(found: tuple[Trigger, int, int]) -> bool:
        trigger, _, due_ms = found
        return trigger.due == () and trigger.next_ms == due_ms > 0

    return (await stage.until("the schedule is set", lambda: stored(stage), is_it))[0]


async def create(stage: Stage) -> Trigger:
    """Create a trigger of a run that ends by itself; an engine has to be up."""
    baton = Baton(state=seed("hourly"), iterations=1)
    on = Cron("@every 1h", catch_up="last")
    await stage.client.triggers.create("hourly", loops(), on, input=baton)
    return await is_scheduled(stage)


async def fall_due(stage: Stage) -> str:
    """Let the firing before the next one be due, and return the id of its run."""
    trigger, revision, _ = await stored(stage)
    due_ms = trigger.next_ms - HOUR_MS
    data = msgspec.json.encode(msgspec.structs.replace(trigger, next_ms=due_ms))
    written = await stage.js.attempt(stage.subjects.trigger("hourly"), data, expected=revision)
    assert isinstance(written, int)
    return run_id("hourly", due_ms)


async def requests(stage: Stage, run: str) -> int:
    return sum(b'"run.requested"' in event.data for event in await stage.events(run))


@pytest.mark.parametrize(
    "window",
    [
        "engine.trigger-looked",
        "engine.trigger-decided",
        "engine.trigger-run-requested",
        "engine.trigger-noted",
        "engine.trigger-scheduled",
    ],
)
def test_a_firing_is_one_run_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        before = await create(stage)
        await stage.settled()
        first.kill()
        # Its first engine dies in the window, the next one in the window after a redelivery.
        doomed = [stage.engine(f"{window}=kill@1")]
        run = await fall_due(stage)
        await doomed[0].died()
        if window in ("engine.trigger-looked", "engine.trigger-scheduled"):
            doomed.append(stage.engine(f"{window}=kill@1"))
            await doomed[1].died()
        stage.engine()
        stage.worker()
        await stage.ended(run)
        after = await is_scheduled(stage)
        await stage.settled()
        assert await requests(stage, run) == 1
        assert (after.next_ms, run_id("hourly", after.fired_ms)) == (before.next_ms, run)

    play(story)


@pytest.mark.parametrize(
    "window",
    ["engine.trigger-looked", "engine.trigger-decided", "engine.trigger-run-requested"],
)
def test_an_engine_that_slept_in_a_firing_starts_no_second_run(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        await create(stage)
        await stage.settled()
        first.kill()
        sleeper = stage.engine(f"{window}=stop@1")
        run = await fall_due(stage)
        await sleeper.stopped()
        stage.engine()
        stage.worker()
        await stage.ended(run)
        await is_scheduled(stage)
        sleeper.go_on()
        await stage.settled()
        await is_scheduled(stage)
        assert await requests(stage, run) == 1

    play(story)


@pytest.mark.parametrize("window", ["engine.trigger-looked", "engine.trigger-decided"])
def test_a_trigger_is_scheduled_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    """The change itself: created while the engine that takes it is about to die."""

    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}=kill@1")
        on = Cron("@every 1h")
        await stage.client.triggers.create("hourly", loops(), on, input=Baton(state=""))
        await doomed.died()
        stage.engine()
        await is_scheduled(stage)

    play(story)
