"""A retry survives the death of the engine in each window of it, and executes nothing twice.

Real processes; the window is hit by a failpoint. The effect log tells what was executed.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk.messages import Ended

pytestmark = pytest.mark.slow

ITERATIONS = 3
WORK_MS = 300


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.step-taken-over=kill@1",
        "engine.document-stored=kill@1",
        "engine.register-created=kill@1",
        "engine.effects-driven=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_retry_goes_on_although_its_engine_died_of_it(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        stage.worker()
        run = await stage.start(
            workflow=loops(steps=2), iterations=ITERATIONS, statuses=("cancelled",), work_ms=WORK_MS
        )
        await stage.holds(Ended, step="loop1")
        await run.cancel()
        await stage.ended()
        await stage.settled()
        first.kill()
        doomed = stage.engine(window)
        again = await run.retry()
        await doomed.died()
        stage.engine()
        assert (await stage.ended(again.id)).status == "completed"
        begun = [
            (each["step"], each["iteration"])
            for each in stage.effects()
            if each["kind"] == "begin" and each["run"] == again.id
        ]
        # The last engine may have given an iteration out a second time; the first loop, never.
        assert {step for step, _ in begun} == {"loop2"}
        assert {iteration for _, iteration in begun} >= {1, 2}

    play(story)
