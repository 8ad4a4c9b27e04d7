"""A start of a singleton does what its policy says, whichever engine dies in it and where.

Real processes; the window is hit by a failpoint. The audit reads from every document that was
ever stored that one run of the lane was active at a time.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

pytestmark = pytest.mark.slow

LANE = "sync:a-1"


async def hold(stage: Stage, *statuses: str) -> None:
    """Have a run hold the lane at the gate, under an engine that is gone afterwards."""
    engine = stage.engine()
    stage.worker()
    await stage.start("older", lane=LANE, iterations=3, wait_at=1, statuses=statuses)
    await stage.begun(2)
    await stage.settled()
    engine.kill()


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken",
        "engine.lane-asked",
        "engine.document-stored",
        "engine.lane-superseded",
        "engine.lane-looked",
        "engine.effects-driven",
        "engine.before-ack",
    ],
)
def test_the_older_run_is_cancelled_once_although_an_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        await hold(stage, "cancelled")
        doomed = stage.engine(f"{window}=kill@1")
        await stage.start("newer", lane=LANE, singleton="cancel_older", iterations=3)
        await doomed.died()
        stage.engine()
        older = await stage.status("older", "cancelled")
        stage.open_gate()
        await stage.ended("newer")
        assert older.failure is not None and "'newer'" in older.failure.message
        await stage.settled()

    play(story)


@pytest.mark.parametrize(
    "window", ["engine.events-taken", "engine.lane-asked", "engine.document-stored"]
)
def test_a_skipped_start_is_a_run_although_an_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        await hold(stage, "completed")
        doomed = stage.engine(f"{window}=kill@1")
        skipped = ("cancelled",)
        await stage.start("second", lane=LANE, singleton="skip", iterations=3, statuses=skipped)
        await doomed.died()
        stage.engine()
        second = await stage.status("second", "cancelled")
        assert second.failure is not None and "'older'" in second.failure.message
        stage.open_gate()
        await stage.ended("older")
        await stage.settled()

    play(story)
