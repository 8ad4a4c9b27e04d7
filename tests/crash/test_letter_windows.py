"""An event is set aside once, although the engine dies of it.

Real processes; the window is hit by a failpoint between the letter and the ack of its event.
"""

from __future__ import annotations

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

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
