"""A worker is killed with -9 in one exact window of its third iteration; another takes over.

Real processes; the window is hit by a failpoint. Then the audit walks the whole history.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

pytestmark = pytest.mark.slow

ITERATIONS = 6


@pytest.mark.parametrize(
    "window",
    [
        "worker.received",
        "worker.checkpoint-before",
        "worker.checkpoint-stored",
        "worker.settle-before",
        "worker.settle-stored",
        "worker.acked",
    ],
)
def test_a_loop_survives_a_worker_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker(f"{window}=kill@3")
        await stage.start(iterations=ITERATIONS)
        await doomed.died()
        stage.worker()
        await stage.ended()
        works = sum(each["kind"] == "work" for each in stage.effects())
        # What was done before the kill is done once more, unless a checkpoint holds it.
        again = window == "worker.checkpoint-before"
        assert works == ITERATIONS + again

    play(story)
