"""An event is set aside once, and a letter is settled by a retry, although the engine dies of it.

Real processes; each window is hit by a failpoint: before and behind the letter, and its mark.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

pytestmark = pytest.mark.slow


def test_an_event_whose_engine_died_behind_its_letter_has_one_letter(play: Play) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine("engine.event-set-aside=kill@1")
        await stage.publish(b"no event", "torn")
        await doomed.died()
        stage.engine()
        await stage.settled()
        (letter,) = await stage.letters()
        assert (letter.run, letter.reason) == ("torn", "corrupt_event")

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        "engine.events-taken=kill@1",
        "engine.letter-marked=kill@1",
        "engine.document-stored=kill@1",
        "engine.before-ack=kill@1",
    ],
)
def test_a_retry_settles_its_letter_although_its_engine_died_of_it(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        first = stage.engine()
        stage.worker()
        run = await stage.start(
            workflow=loops(max_iterations=2), iterations=9, statuses=("failed",)
        )
        await stage.ended()
        await stage.settled()
        (letter,) = (await stage.client.dead_letters.list()).letters
        first.kill()
        await stage.client.register(loops(max_iterations=20))
        doomed = stage.engine(window)
        again = await run.retry(version="latest", id="again")
        await doomed.died()
        stage.engine()
        assert (await stage.ended(again.id)).status == "completed"
        settled = await stage.client.dead_letters.get(letter.number)
        assert (settled.state, settled.done, settled.replays) == ("replayed", "run again", 1)
        assert (await stage.client.dead_letters.list()).letters == ()

    play(story)
