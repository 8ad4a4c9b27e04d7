"""So many runs of a workflow are under way at once, whoever dies in a start or an end, and where.

Real processes; the window is hit by a failpoint. The audit reads from every document that was
ever stored that no more runs were active at a time than may be, and that none was overtaken.
"""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from tests.crash.conftest import Play
from tests.crash.process import Process
from tests.crash.stage import Stage, loops

pytestmark = pytest.mark.slow

TWO = msgspec.structs.replace(loops("few"), concurrency=2)
ITERATIONS = 3


async def start(stage: Stage, *names: str, wait_at: int = -1) -> None:
    for name in names:
        await stage.start(name, workflow=TWO, iterations=ITERATIONS, wait_at=wait_at)


async def hold(stage: Stage, *queued: str) -> Process:
    """Have two runs under way at the gate and others wait behind them; return their engine."""
    engine = stage.engine()
    stage.worker()
    await start(stage, "first", "second", wait_at=1)
    await stage.begun(4)
    await start(stage, *queued)
    for name in queued:
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
def test_a_start_waits_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = await hold(stage)
        first.kill()
        doomed = stage.engine(window)
        await start(stage, "third", "fourth")
        await doomed.died()
        stage.engine()
        await stage.status("fourth", "queued")
        stage.open_gate()
        await stage.ended("fourth")

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        # The end of the first two: stored, looked who is next, told them, noted.
        "engine.document-stored=kill@1",
        "engine.lane-looked=kill@1",
        "engine.lane-granted=kill@1",
        "engine.lane-noted=kill@1",
        "engine.effects-driven=kill@1",
        "engine.document-stored=kill@2",
        "engine.lane-granted=kill@2",
    ],
)
def test_a_place_goes_to_the_next_although_its_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        first = await hold(stage, "third", "fourth", "fifth")
        first.kill()
        doomed = stage.engine(window)
        stage.open_gate()
        await doomed.died()
        stage.engine()
        await stage.ended("fifth")

    play(story)


@pytest.mark.parametrize("window", ["engine.lane-asked", "engine.lane-looked"])
def test_an_engine_that_looked_long_ago_starts_no_run_too_many(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        paused = stage.engine(f"{window}=stop@1")
        stage.worker()
        names = ["first", "second", "third", "fourth", "fifth"]
        await start(stage, *names[:3], wait_at=1)
        await start(stage, *names[3:])
        if window == "engine.lane-asked":
            await paused.stopped()
            stage.engine()
            await stage.begun(2)
            stage.open_gate()
        else:
            stage.engine()
            stage.open_gate()
            await paused.stopped()
        await stage.ended("third")
        paused.go_on()
        for name in names:
            await stage.ended(name)

    play(story)


def test_the_runs_follow_while_their_engines_and_workers_are_killed(play: Play) -> None:
    async def story(stage: Stage) -> None:
        engines, workers = [stage.engine(), stage.engine()], [stage.worker()]
        names = [f"r{number}" for number in range(14)]
        for name in names:
            await stage.start(name, workflow=TWO, iterations=ITERATIONS, work_ms=30)
        for number, name in enumerate(names[:10:2]):
            await stage.ended(name)
            engines.pop(0).kill()
            engines.append(stage.engine())
            if number % 2:
                workers.pop().kill()
                workers.append(stage.worker())
        for name in names:
            await stage.ended(name)

    play(story)


def test_the_runs_follow_although_the_server_is_killed(play_alone: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.engine()
        stage.worker()
        names = [f"r{number}" for number in range(6)]
        await stage.client.register(TWO)
        await asyncio.gather(
            *(stage.start(n, workflow=TWO, iterations=ITERATIONS, work_ms=30) for n in names)
        )
        for executions in (2, 8):
            await stage.begun(executions)
            await stage.kill_server()
        for name in names:
            await stage.ended(name)

    play_alone(story)
