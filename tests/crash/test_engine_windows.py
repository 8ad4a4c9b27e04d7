"""An engine is killed with -9 in one exact window; another one starts and finds what it left.

Real processes; the window is hit by a failpoint. Then the audit walks the whole history.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.crash.chain import Baton, seed
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk.messages import StepContinued, Task

pytestmark = pytest.mark.slow

ITERATIONS = 4


@pytest.mark.parametrize(
    "window",
    [
        # Before the compare-and-set: of the start, an iteration.
        "engine.events-taken=kill@1",
        "engine.events-taken=kill@3",
        # Between the compare-and-set and its effects: of the start, an iteration, the end.
        "engine.document-stored=kill@1",
        "engine.register-stored=kill@2",
        f"engine.register-stored=kill@{ITERATIONS}",
        "engine.document-stored=kill@2",
        # Between the effects and the ack: of the start, an iteration, the end.
        "engine.effects-driven=kill@1",
        "engine.before-ack=kill@3",
        "engine.effects-driven=kill@2",
    ],
)
def test_a_loop_survives_an_engine_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        await stage.start(iterations=ITERATIONS)
        await doomed.died()
        stage.engine()
        await stage.ended()

    play(story)


def test_two_loops_in_a_row_survive_an_engine_killed_between_them(play: Play) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.document-stored=kill@2")
        stage.worker()
        await stage.start(workflow=loops(steps=2), iterations=2)
        await doomed.died()
        stage.engine()
        await stage.ended()

    play(story)


def test_a_signal_between_the_document_and_the_first_register_is_counted_once(play: Play) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.document-stored=kill@1")
        await stage.start(iterations=2)
        await doomed.died()
        assert await stage.register() is None
        await stage.client.signal("run", "note", 1)
        stage.engine()
        stage.worker()
        ended = await stage.ended()
        assert ended.signals_received == 1

    play(story)


def test_a_failed_run_has_one_dead_letter_also_when_its_engine_dies_before_it_says_so(
    play: Play,
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.letter-stored=kill@1")
        stage.worker()
        await stage.start(workflow=loops(max_iterations=2), iterations=9, statuses=("failed",))
        await doomed.died()
        stage.engine()
        ended = await stage.ended()
        assert ended.failure is not None
        assert ended.failure.type == "max_iterations"

    play(story)


def test_a_deadline_holds_although_the_engine_died_before_it_was_set(play: Play) -> None:
    """The first register stands, its deadline does not, and the loop goes on meanwhile."""

    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.register-created=kill@1")
        await stage.start(
            workflow=loops(max_duration=2.5), iterations=9, hang_at=1, statuses=("failed",)
        )
        await doomed.died()
        token, _ = await stage.holds(Task)
        # The settle of iteration 0 waits before any engine has seen the register.
        baton = Baton(state=seed("run"), iterations=9, hang_at=1)
        await stage.publish(
            StepContinued(
                step="loop",
                type="link",
                token=token,
                head=token,
                iteration=0,
                output=msgspec.Raw(msgspec.json.encode(baton)),
            )
        )
        stage.engine()
        stage.worker()
        ended = await stage.ended()
        assert ended.failure is not None
        assert ended.failure.type == "max_duration"
        assert 2_500 <= ended.ended_ms - ended.requested_ms < 6_000

    play(story)
