"""A scheduled run begins once and at its time, and its place in its lane is one, whoever dies.

Real processes; the window is hit by a failpoint. The audit reads from every document that was
stored that one run of a lane was active at a time, in the order of their places.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.process import Process
from tests.crash.stage import Stage

from treadle.sdk.messages import Task

pytestmark = pytest.mark.slow

LANE = "report:eu"
ITERATIONS = 3
AFTER_S = 2.5
"""Longer than it takes until nothing of the request can be delivered again."""


async def scheduled(stage: Stage, *, lane: str | None = None) -> Process:
    """Have a run scheduled whose request nobody delivers again; return its engine."""
    engine = stage.engine()
    stage.worker()
    await stage.start("run", lane=lane, iterations=ITERATIONS, start_after=AFTER_S)
    await stage.status("run", "scheduled")
    await stage.settled()
    return engine


async def begun_at_its_time(stage: Stage) -> None:
    """Wait until the run has ended, and see that no step of it began before its time."""
    ended = await stage.ended("run")
    assert ended.starts_ms == ended.requested_ms + AFTER_S * 1000
    assert ended.steps["loop"].started_ms >= ended.starts_ms


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.document-stored=kill@1",
        "engine.effects-driven=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_run_is_scheduled_although_its_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        stage.worker()
        doomed = stage.engine(window)
        await stage.start("run", iterations=ITERATIONS, start_after=AFTER_S)
        await doomed.died()
        stage.engine()
        await begun_at_its_time(stage)

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.document-stored=kill@1",
        "engine.register-created=kill@1",
        "engine.effects-driven=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_it_begins_although_the_engine_of_its_timer_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = await scheduled(stage)
        first.kill()
        doomed = stage.engine(window)
        await doomed.died()
        stage.engine()
        await begun_at_its_time(stage)

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        # Its time has come: stored, entered; then it is placed, and begins or is queued.
        "engine.document-stored=kill@1",
        "engine.lane-entered=kill@1",
        "engine.effects-driven=kill@1",
        "engine.lane-asked=kill@1",
        "engine.document-stored=kill@2",
        "engine.effects-driven=kill@2",
    ],
)
@pytest.mark.parametrize("is_held", [False, True], ids=["free", "held"])
def test_it_enters_its_lane_once_although_its_engine_was_killed_at(
    play: Play, window: str, is_held: bool
) -> None:
    async def story(stage: Stage) -> None:
        if is_held:
            stage.engine()
            stage.worker()
            await stage.start("holder", lane=LANE, iterations=ITERATIONS, wait_at=1)
            await stage.holds(Task, "holder")
        first = await scheduled(stage, lane=LANE)
        for engine in (first, *stage.processes):
            if engine.role == "engine" and engine.is_running:
                engine.kill()
        doomed = stage.engine(window)
        await doomed.died()
        stage.engine()
        await stage.start("last", lane=LANE, iterations=ITERATIONS)
        await stage.status(
            "last", *(("queued",) if is_held else ("queued", "running", "completed"))
        )
        stage.open_gate()
        await begun_at_its_time(stage)
        await stage.ended("last")

    play(story)


@pytest.mark.parametrize(
    "window", ["engine.document-stored=kill@1", "engine.effects-driven=kill@1"]
)
def test_it_stays_cancelled_although_the_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        run = await stage.start(
            "run", iterations=ITERATIONS, start_after=AFTER_S, statuses=("cancelled",)
        )
        due_ms = (await stage.status("run", "scheduled")).starts_ms
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        await run.cancel()
        await doomed.died()
        stage.engine()
        ended = await stage.ended("run")
        assert ended.ended_ms < due_ms
        assert ended.steps == {}

    play(story)


def test_it_begins_although_the_server_was_killed_while_it_was_scheduled(play_alone: Play) -> None:
    async def story(stage: Stage) -> None:
        await scheduled(stage)
        await stage.kill_server()
        await begun_at_its_time(stage)

    play_alone(story)
