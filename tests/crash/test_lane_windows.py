"""A lane keeps its promise whoever dies in it: the engine in each window, the worker, the server.

Real processes; the window is hit by a failpoint. The audit reads from every document that was
ever stored that one run of a lane was active at a time, in the order of the requests.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.crash.conftest import Play
from tests.crash.process import Process
from tests.crash.stage import Stage

from treadle.sdk.messages import Task

pytestmark = pytest.mark.slow

LANE = "conversation:42"
ITERATIONS = 3


async def hold(stage: Stage, *queued: str) -> Process:
    """Have a run hold the lane at the gate and others wait behind it; return its engine."""
    engine = stage.engine()
    stage.worker()
    await stage.start("holder", lane=LANE, iterations=ITERATIONS, wait_at=1)
    await stage.begun(2)
    for name in queued:
        await stage.start(name, lane=LANE, iterations=ITERATIONS)
        await stage.status(name, "queued")
    await stage.settled()
    return engine


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.lane-asked=kill@1",
        "engine.document-stored=kill@1",
        "engine.lane-looked=kill@1",
        "engine.lane-noted=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_run_is_queued_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = await hold(stage)
        first.kill()
        doomed = stage.engine(window)
        await stage.start("second", lane=LANE, iterations=ITERATIONS)
        await stage.start("third", lane=LANE, iterations=ITERATIONS)
        await doomed.died()
        stage.engine()
        await stage.status("third", "queued")
        stage.open_gate()
        await stage.ended("third")

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        # The end of the holder: stored, looked who is next, told it, noted.
        "engine.document-stored=kill@1",
        "engine.lane-looked=kill@1",
        "engine.lane-granted=kill@1",
        "engine.lane-noted=kill@1",
        "engine.effects-driven=kill@1",
        # The start of the next one: taken, stored, its first task.
        "engine.document-stored=kill@2",
        "engine.register-created=kill@1",
        "engine.effects-driven=kill@2",
    ],
)
def test_the_next_run_starts_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = await hold(stage, "second", "third")
        first.kill()
        doomed = stage.engine(window)
        stage.open_gate()
        await doomed.died()
        stage.engine()
        await stage.ended("third")

    play(story)


@pytest.mark.parametrize("window", ["engine.lane-asked", "engine.lane-looked"])
def test_an_engine_that_looked_long_ago_starts_nobody_out_of_turn(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        paused = stage.engine(f"{window}=stop@1")
        stage.worker()
        names = ["first", "second", "third"]
        for name in names:
            await stage.start(name, lane=LANE, iterations=ITERATIONS, wait_at=1)
        await paused.stopped()
        stage.engine()
        await stage.holds(Task, "first")
        stage.open_gate()
        await stage.ended("second")
        paused.go_on()
        for name in names:
            await stage.ended(name)

    play(story)


@pytest.mark.parametrize("window", ["engine.document-stored=kill@1", "engine.lane-looked=kill@1"])
def test_a_queued_run_stays_out_although_the_engine_that_cancelled_it_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        first = await hold(stage)
        run = await stage.start("second", lane=LANE, iterations=ITERATIONS, statuses=("cancelled",))
        await stage.status("second", "queued")
        await stage.start("third", lane=LANE, iterations=ITERATIONS)
        await stage.status("third", "queued")
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        await run.cancel()
        await doomed.died()
        stage.engine()
        stage.open_gate()
        await stage.ended("third")

    play(story)


def test_a_run_whose_worker_dies_keeps_its_lane_until_it_has_ended(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker("worker.settle-before=kill@2")
        for name in ("first", "second"):
            await stage.start(name, lane=LANE, iterations=ITERATIONS)
        await doomed.died()
        await stage.status("second", "queued")
        stage.worker()
        await stage.ended("second")

    play(story)


def test_lanes_drain_while_their_engines_are_killed_one_after_another(play: Play) -> None:
    async def story(stage: Stage) -> None:
        engines = [stage.engine(), stage.engine()]
        stage.worker()
        names = [f"r{number}" for number in range(12)]
        for number, name in enumerate(names):
            await stage.start(name, lane=f"lane {number % 2}", iterations=ITERATIONS, work_ms=30)
        for name in names[:8:2]:
            await stage.ended(name)
            engines.pop(0).kill()
            engines.append(stage.engine())
        for name in names:
            await stage.ended(name)

    play(story)


def test_lanes_drain_although_the_server_is_killed(play_alone: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.engine()
        stage.worker()
        names = [f"r{number}" for number in range(6)]
        await asyncio.gather(
            *(stage.start(n, lane=LANE, iterations=ITERATIONS, work_ms=30) for n in names)
        )
        for executions in (2, 8):
            await stage.begun(executions)
            await stage.kill_server()
        for name in names:
            await stage.ended(name)

    play_alone(story)
