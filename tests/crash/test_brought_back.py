"""A register that comes back to life after its run has ended, as a server can make it do.

It is written by hand, over the end and again under a purged subject; its task may be executed,
but nothing comes of it, and the register ends again.
"""

from __future__ import annotations

import msgspec
import pytest
from tests.crash.chain import Baton, seed
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk.messages import Ended, Inline, Task

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("how", ["over-the-end", "after-a-purge"])
def test_a_register_brought_back_after_the_end_ends_again(play: Play, how: str) -> None:
    async def story(stage: Stage) -> None:
        engine = stage.engine()
        stage.worker()
        await stage.start(iterations=3)
        await stage.ended()
        await stage.audit()
        stage.expected.clear()  # What follows is not the doing of any process.
        before = await stage.ended()
        head, _ = await stage.holds(Ended)
        if how == "after-a-purge":
            await stage.js.purge(stage.subjects.steps_stream, stage.subjects.pair("run", "loop"))
            head = 0
            # The engine that ended it remembers nothing of it either.
            engine.kill()
            stage.engine()
        stored = await stage.js.attempt(
            stage.register_subject(),
            msgspec.json.encode(_task(before.definition)),
            expected=head,
            filter=stage.subjects.pair("run", "loop"),
        )
        assert isinstance(stored, int)
        _, again = await stage.holds(Ended, since=stored)
        assert isinstance(again, Ended)
        assert again.outcome == "cancelled"
        await stage.settled()
        assert await stage.document() == before
        assert max(each["iteration"] for each in stage.effects()) == 2

    play(story)


def _task(definition: str) -> Task:
    baton = Baton(state=seed("run"), iterations=9)
    return Task(
        parent="e3",
        workflow="chain",
        definition=definition,
        loop=True,
        iteration=1,
        input=Inline(msgspec.Raw(msgspec.json.encode(baton))),
        max_iterations=1000,
    )
