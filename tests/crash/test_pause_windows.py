"""A pause and a resume survive the death of everybody, in each window of them.

Real processes; the window is hit by a failpoint. The audit counts iterations and what they spent.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk.messages import Parked

pytestmark = pytest.mark.slow

ITERATIONS = 4


async def _held(stage: Stage) -> None:
    """Wait until the loop is held by the pause."""
    placed = await stage.holds(Parked)
    assert isinstance(placed.register, Parked)
    assert placed.register.paused
    await stage.status("run", "paused")


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.document-stored=kill@1",
        "engine.pause-marked=kill@1",
        "engine.effects-driven=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_pause_holds_although_its_engine_died_of_it(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        stage.worker()
        run = await stage.start(iterations=ITERATIONS, wait_at=1)
        await stage.begun(2)
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        await run.pause()
        await doomed.died()
        stage.engine()
        await stage.status("run", "paused")
        stage.open_gate()
        await _held(stage)
        await stage.quiet(0.5)
        assert sum(each["kind"] == "begin" for each in stage.effects()) == 2
        await run.resume()

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.document-stored=kill@1",
        "engine.run-resumed=kill@1",
        "engine.register-stored=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_run_goes_on_although_the_engine_died_that_resumed_it(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        stage.worker()
        run = await stage.start(iterations=ITERATIONS, wait_at=1)
        await stage.begun(2)
        await run.pause()
        await stage.status("run", "paused")
        stage.open_gate()
        await _held(stage)
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        await run.resume()
        await doomed.died()
        stage.engine()

    play(story)


def test_a_step_that_is_held_while_the_run_is_resumed_is_released(play: Play) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.register-held=stop@1")
        stage.worker()
        run = await stage.start(iterations=ITERATIONS, wait_at=1)
        await stage.begun(2)
        await run.pause()
        await stage.status("run", "paused")
        stage.open_gate()
        await doomed.stopped()
        other = stage.engine()
        await stage.heard(other)
        await run.resume()
        await stage.status("run", "running", "completed")
        doomed.go_on()

    play(story)


@pytest.mark.parametrize("victim", ["worker", "server", "all"])
def test_a_paused_run_stays_so_and_goes_on_after_the_death_of(
    play_alone: Play, victim: str
) -> None:
    async def story(stage: Stage) -> None:
        engine, worker = stage.engine(), stage.worker()
        run = await stage.start(iterations=ITERATIONS, wait_at=1)
        await stage.begun(2)
        await run.pause()
        await stage.status("run", "paused")
        if victim in ("worker", "all"):
            worker.kill()
        if victim == "all":
            engine.kill()
        if victim in ("server", "all"):
            await stage.kill_server()
        if victim == "all":
            stage.engine()
        stage.open_gate()
        if victim in ("worker", "all"):
            stage.worker()
        await _held(stage)
        await run.resume()

    play_alone(story)
