"""A killed process is noticed and replaced in a moment, long before any ack wait is over."""

from __future__ import annotations

import time

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk.messages import Task

TAKE_OVER_S = 5.0
"""The bound; a quiet machine needs well under a second."""


def test_a_second_worker_takes_a_killed_ones_loop_over(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker("worker.checkpoint-stored=kill@3")
        await doomed.said("worker.ready")
        # The engine hears the second only after the first holds the loop.
        await stage.start(iterations=60, work_ms=10)
        await stage.reached(1)
        second = stage.worker()
        await doomed.died()
        killed_at_s = time.monotonic()
        await second.said("worker.ready")
        await stage.ended()
        resumed_at_s = min(each["at_s"] for each in stage.effects() if each["pid"] == second.pid)
        assert resumed_at_s - killed_at_s < TAKE_OVER_S

    play(story)


@pytest.mark.slow
def test_a_second_engine_goes_on_at_once_when_the_first_is_killed(play: Play) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.events-taken=kill@5")
        second = stage.engine()
        await doomed.said("engine.ready")
        await second.said("engine.ready")
        await stage.heard(doomed)
        stage.worker()
        await stage.start(iterations=200, work_ms=2)
        await doomed.died()
        killed_at_s = time.monotonic()
        found = await stage.register()
        assert found is not None
        await stage.holds(Task, since=found.token)
        assert time.monotonic() - killed_at_s < TAKE_OVER_S
        await stage.ended()

    play(story)
