"""Engines and workers are killed with -9 in each window of a map; every item is counted once.

Real processes, two of each kind where another has to go on; the windows are hit by failpoints.
"""

from __future__ import annotations

from collections import Counter

import pytest
from tests.crash import audit
from tests.crash.conftest import Play
from tests.crash.member import ITEM_TYPE
from tests.crash.stage import Stage

from treadle.sdk import Retry, Workflow

pytestmark = pytest.mark.slow

ITEMS = 12
FLAKY = {3, 8}
"""Items that fail once, whatever else happens."""


async def start(stage: Stage, *, chunk: int, max_parallel: int) -> None:
    workflow = Workflow[list[int]]("mapping")
    retry = Retry(max_attempts=3, delay_s=0.05)
    workflow.map("each", ITEM_TYPE, chunk=chunk, max_parallel=max_parallel, retry=retry)
    stage.expected.append(audit.Expected("run", 0, ()))
    await stage.client.start(workflow, list(range(ITEMS)), id="run")


async def done(stage: Stage) -> Counter[int]:
    """Wait for the end; return how often each item was executed."""
    await stage.ended()
    assert await stage.client.result("run") == [2 * n for n in range(ITEMS)]
    view = (await stage.client.get("run")).step("each")
    assert (view.items_done, view.items_failed) == (ITEMS, 0)
    return Counter(each["index"] for each in stage.effects() if each["kind"] == "item")


@pytest.mark.parametrize(
    "window",
    [
        # Before the compare-and-set: of the start, of the end of a chunk.
        "engine.events-taken=kill@1",
        "engine.events-taken=kill@3",
        # Between the compare-and-set and its effects: of the start, of a chunk, of the end.
        "engine.document-stored=kill@1",
        "engine.register-stored=kill@1",
        "engine.document-stored=kill@2",
        # When some chunks of the start are there and others are not; when the next one is.
        "engine.register-created=kill@2",
        "engine.register-created=kill@5",
        # Between the effects and the ack.
        "engine.effects-driven=kill@2",
        "engine.before-ack=kill@3",
    ],
)
def test_a_map_survives_an_engine_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        await start(stage, chunk=2, max_parallel=4)
        await doomed.died()
        stage.engine()
        count = await done(stage)
        # No worker was lost, so nothing was executed again that had not failed.
        assert count == {index: 1 + (index in FLAKY) for index in range(ITEMS)}

    play(story)


@pytest.mark.parametrize("window", ["engine.document-stored=kill@3", "engine.before-ack=kill@4"])
def test_a_second_engine_goes_on_with_a_map_at_once(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        stage.engine(window)
        stage.engine(window)
        stage.worker()
        await start(stage, chunk=1, max_parallel=6)
        third = stage.engine()
        count = await done(stage)
        assert third.is_running
        assert count == {index: 1 + (index in FLAKY) for index in range(ITEMS)}

    play(story)


@pytest.mark.parametrize(
    "window",
    [
        "worker.received=kill@2",
        "worker.record-before=kill@1",
        "worker.record-stored=kill@1",
        "worker.settle-before=kill@1",
        "worker.settle-stored=kill@1",
        "worker.acked=kill@1",
    ],
)
def test_a_map_survives_a_worker_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.engine()
        doomed = stage.worker(window)
        await start(stage, chunk=6, max_parallel=2)
        await doomed.died()
        stage.worker()
        count = await done(stage)
        assert set(count) == set(range(ITEMS))
        if window.startswith(("worker.record-stored", "worker.settle-stored", "worker.acked")):
            saved = [index for index in count if count[index] == 1]
            assert len(saved) >= 3, "what was saved is not executed again"

    play(story)
