"""A worker, an engine or the server dies while a loop waits between two iterations.

The delay stands in the register, nobody's memory holds it: it is neither lost nor cut short.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk.messages import Delayed

pytestmark = pytest.mark.slow

DELAY_S = 1.0


def _pauses_s(effects: list[dict[str, Any]]) -> list[float]:
    """Return the time from the last end of each iteration to the first begin of the next."""
    ends = {each["iteration"]: each["at_s"] for each in effects if each["kind"] == "end"}
    begins = {
        each["iteration"]: each["at_s"] for each in reversed(effects) if each["kind"] == "begin"
    }
    return [begins[n + 1] - ends[n] for n in sorted(ends) if n + 1 in begins]


@pytest.mark.parametrize("victim", ["worker", "engine", "server", "all"])
def test_a_delayed_loop_goes_on_after_the_death_of(play_alone: Play, victim: str) -> None:
    async def story(stage: Stage) -> None:
        engine, worker = stage.engine(), stage.worker()
        await stage.start(workflow=loops(loop_delay=DELAY_S), iterations=2)
        await stage.holds(Delayed)
        if victim in ("worker", "all"):
            worker.kill()
        if victim in ("engine", "all"):
            engine.kill()
        if victim in ("server", "all"):
            await stage.kill_server()
        if victim in ("worker", "all"):
            stage.worker()
        if victim in ("engine", "all"):
            stage.engine()
        await stage.ended()
        pauses_s = _pauses_s(stage.effects())
        assert len(pauses_s) == 1
        assert DELAY_S - 0.05 <= pauses_s[0] < DELAY_S + 4

    play_alone(story)
