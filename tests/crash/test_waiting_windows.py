"""A loop that waits for a message survives the death of everybody, in each window of it.

Real processes; the window is hit by a failpoint. The audit counts iterations, what they spent,
and messages that nobody saw.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk.messages import Parked

pytestmark = pytest.mark.slow

ITERATIONS = 4
PAUSE_S = 1.5


def _heard(stage: Stage) -> list[str]:
    return [each["kind"] for each in stage.effects() if each["kind"].startswith("heard")]


@pytest.mark.parametrize(
    "window",
    [
        # The verdict to wait: taken, stored in the register, told to the document.
        "engine.events-taken=kill@3",
        "engine.register-stored=kill@2",
        "engine.document-stored=kill@2",
        "engine.before-ack=kill@3",
    ],
)
def test_a_message_sent_while_no_engine_lives_sends_the_loop_on(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        run = await stage.start(iterations=ITERATIONS, pause_at=1)
        await doomed.died()
        await run.send("loop", "go on", id="m1")
        stage.engine()
        await stage.ended()
        assert _heard(stage) == ["heard m1"]

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.register-stored=kill@1",
        "engine.document-stored=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_loop_goes_on_although_its_engine_died_of_the_message(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        stage.worker()
        run = await stage.start(iterations=ITERATIONS, pause_at=1)
        await stage.holds(Parked)
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        await run.send("loop", "go on", id="m1")
        await doomed.died()
        stage.engine()
        await stage.ended()
        assert _heard(stage) == ["heard m1"]

    play(story)


def test_a_message_that_comes_between_the_last_look_and_the_register(play: Play) -> None:
    """It finds a step that is executed, and the wait is stored after it: the wait looks again."""

    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.messages-looked=stop@1;engine.register-woken=kill@1")
        stage.worker()
        run = await stage.start(iterations=ITERATIONS, pause_at=1)
        await doomed.stopped()
        await run.send("loop", "go on", id="m1")
        doomed.go_on()
        await doomed.died()
        stage.engine()
        await stage.ended()
        assert _heard(stage) == ["heard m1"]

    play(story)


@pytest.mark.parametrize("window", ["worker.settle-before", "worker.settle-stored", "worker.acked"])
def test_a_loop_survives_a_worker_killed_as_it_asks_to_wait(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker(f"{window}=kill@2")
        run = await stage.start(iterations=ITERATIONS, pause_at=1)
        await doomed.died()
        stage.worker()
        await stage.holds(Parked)
        await run.send("loop", "go on", id="m1")
        await stage.ended()
        # The worker that read it is not the one that was killed.
        assert _heard(stage) == ["heard m1"]

    play(story)


def test_a_worker_killed_after_it_read_a_message_has_not_used_it_up(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker("worker.settle-before=kill@2")
        run = await stage.start(iterations=ITERATIONS, listens=True, wait_at=1)
        await stage.begun(2)
        await run.send("loop", "listen", id="m1")
        stage.open_gate()
        await doomed.died()
        stage.worker()
        await stage.ended()
        assert "heard m1" in _heard(stage)

    play(story)


@pytest.mark.parametrize("victim", ["engine", "server", "all"])
def test_a_wait_ends_at_its_time_after_the_death_of(play_alone: Play, victim: str) -> None:
    async def story(stage: Stage) -> None:
        engine, worker = stage.engine(), stage.worker()
        await stage.start(
            workflow=loops(max_duration=60), iterations=3, pause_at=1, pause_s=PAUSE_S
        )
        await stage.holds(Parked)
        if victim in ("engine", "all"):
            engine.kill()
        if victim == "all":
            worker.kill()
        if victim in ("server", "all"):
            await stage.kill_server()
        if victim == "all":
            stage.worker()
        if victim in ("engine", "all"):
            stage.engine()
        await stage.ended()
        at_s = {(each["kind"], each["iteration"]): each["at_s"] for each in stage.effects()}
        assert PAUSE_S - 0.05 <= at_s["begin", 2] - at_s["end", 1] < PAUSE_S + 6

    play_alone(story)
