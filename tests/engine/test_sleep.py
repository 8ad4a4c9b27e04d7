"""Delays too long for a worker to hold are slept in the timers stream; here already short ones.

A schedule is a hint that may come early, twice or late: the loop goes on once, and not too soon.
"""

from __future__ import annotations

import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from tests.crash.namespace import Standing, task_of
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop

from treadle.sdk import RunFailed, Workflow
from treadle.sdk.messages import Ended, Sleeping, Task, TimerFired

DELAY_S = 1.0


@pytest.fixture(autouse=True)
def _every_delay_is_long(monkeypatch: pytest.MonkeyPatch) -> None:
    module = sys.modules["treadle.engine.core.advance"]  # Its function has the same name.
    monkeypatch.setattr(module, "DELAY_BY_WORKER_MS_MAX", 0)


async def _asleep(stand: Stand) -> Standing:
    """Let a loop continue into its delay."""
    await stand.client.start(loop(loop_delay=DELAY_S), {}, id="run")
    await stand.continues((await stand.holds(Task)).token)
    return await stand.holds(Sleeping)


async def _awake_on_time(stand: Stand, asleep: Standing) -> None:
    awake = await stand.holds(Task, since=asleep.token)
    task = task_of(awake.register)
    assert (task.iteration, task.attempt) == (1, 1)
    assert isinstance(asleep.register, Sleeping)
    stored = await stand.js.get(stand.subjects.steps_stream, awake.token)
    assert stored is not None
    late_ms = stored.time_ms - asleep.register.due_ms
    assert 0 <= late_ms < 3_000


async def _fires_early(stand: Stand) -> None:
    fired = TimerFired(kind="wake", step="loop", type="link", due_ms=1)
    await stand.js.store(stand.subjects.fired("run", "w-loop"), msgspec.json.encode(fired))


def test_a_long_delay_ends_on_time_also_when_the_engine_was_restarted(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        asleep = await _asleep(stand)
        await stand.stop(engine)
        await stand.engine()
        await _awake_on_time(stand, asleep)

    play(story)


def test_a_timer_that_fires_early_wakes_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        asleep = await _asleep(stand)
        await _fires_early(stand)
        await _awake_on_time(stand, asleep)

    play(story)


def test_a_schedule_that_was_replaced_by_an_older_one_is_set_again(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        asleep = await _asleep(stand)
        timers, subject = stand.subjects.timers_stream, stand.subjects.timer("run", "w-loop")

        async def purged() -> int:
            return await stand.js.purge(timers, subject)

        # The schedule comes a moment after the register.
        await stand.until("its schedule is gone", purged, lambda n: n == 1)
        await _fires_early(stand)
        await _awake_on_time(stand, asleep)

    play(story)


def test_a_cancel_ends_a_loop_that_sleeps_and_clears_its_timers(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await _asleep(stand)
        await stand.client.cancel("run")
        await stand.holds(Ended)
        assert (await stand.ended()).status == "cancelled"

        async def timers() -> int:
            return int((await stand.state(stand.subjects.timers_stream))["messages"])

        await stand.until("no timer is left", timers, lambda n: n == 0)

    play(story)


@pytest.mark.slow
def test_a_sleep_by_an_expression_ends_when_its_run_says_also_after_a_restart(play: Play) -> None:
    workflow = Workflow("remind", input=dict)
    workflow.sleep("nap", expression='input["at"]')

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        at = datetime.now(UTC) + timedelta(seconds=1.5)
        run = await stand.client.start(workflow, {"at": at.isoformat()}, id="run")
        never = await stand.client.start(workflow, {"at": "soon"}, id="never")
        with pytest.raises(RunFailed, match="comes to 'soon', and a sleep takes"):
            await never.result(timeout_s=10)
        assert (await run.get()).step("nap").due_ms == round(at.timestamp() * 1000)
        await stand.stop(engine)
        await stand.engine()
        await run.result(timeout_s=20)
        assert datetime.now(UTC) >= at

    play(story)


@pytest.mark.slow
def test_a_sleep_by_cron_ends_at_its_next_time_also_after_a_restart(play: Play) -> None:
    workflow = Workflow("tick")
    nap = workflow.sleep("nap", cron="@every 2s")
    workflow.sleep("again", cron="@every 1s", when="true", after=nap)

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        run = await stand.client.start(workflow, None, id="run")
        await stand.status("run", "running")
        view = (await run.get()).step("nap")
        assert view.due_ms == view.started_ms // 2_000 * 2_000 + 2_000
        await stand.stop(engine)
        await stand.engine()
        await run.result(timeout_s=20)
        view = (await run.get()).step("again")
        assert view.ended_ms >= view.started_ms // 1_000 * 1_000 + 1_000

    play(story)
