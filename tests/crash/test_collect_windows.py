"""Each collected start is in one run, whichever engine dies or sleeps in collecting it and where.

Real processes; the window is hit by a failpoint. Timers fire, and the server hands out again."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk import Workflow
from treadle.sdk.collecting import Batch, Collect, Debounce
from treadle.sdk.messages import RunRequested

pytestmark = pytest.mark.slow

WINDOWS = [
    "engine.collect-looked",
    "engine.collect-timer-set",
    "engine.collect-decided",
    "engine.collect-run-requested",
    "engine.collect-closed",
    "engine.collect-dropped",
]


def collecting(collect: Collect) -> Workflow[Any]:
    """Return a workflow whose runs end without a worker."""
    workflow = Workflow("collecting", collect=collect)
    workflow.sleep("done", 0.001)
    return workflow


async def inputs(stage: Stage) -> dict[str, Any]:
    """Return the input of each run; a run that was requested twice has one."""
    s = stage.subjects
    found: dict[str, Any] = {}
    async for event in stage.js.read(s.events_stream, s.all_events):
        if b'"run.requested"' in event.data:
            request = msgspec.json.decode(event.data, type=RunRequested)
            value = msgspec.json.decode(request.input)
            assert found.setdefault(s.parse_event(event.subject).run, value) == value
    return found


async def all_in(stage: Stage, wanted: list[Any]) -> None:
    async def read() -> list[Any]:
        return list((await inputs(stage)).values())

    await stage.until("the runs", read, lambda found: len(found) >= len(wanted))
    for run in await inputs(stage):
        assert (await stage.ended(run)).status == "completed"
    assert await read() == wanted


async def nothing_left(stage: Stage) -> None:
    """Wait until no start is kept: none has an id."""

    async def left() -> int:
        return int((await stage.state(stage.subjects.collect_stream))["messages"])

    await stage.until("the starts are gone", left, lambda count: count == 0)


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_batch_has_each_start_once_although_an_engine_died_or_slept_at(
    play: Play, window: str, how: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}={how}@1")
        workflow = collecting(Batch(3, 1.0))
        for number in range(5):
            await stage.client.collect(workflow, number)
        await (doomed.died() if how == "kill" else doomed.stopped())
        stage.engine()
        await all_in(stage, [[0, 1, 2], [3, 4]])
        if how == "stop":
            doomed.go_on()
        await stage.settled()
        await all_in(stage, [[0, 1, 2], [3, 4]])
        await nothing_left(stage)

    play(story)


@pytest.mark.parametrize("window", WINDOWS)
def test_a_debounce_has_the_last_start_although_an_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}=kill@1")
        workflow = collecting(Debounce(0.8, 30))
        for number in range(4):
            await stage.client.collect(workflow, number)
        await doomed.died()
        stage.engine()
        await all_in(stage, [3])
        await stage.settled()
        await all_in(stage, [3])
        await nothing_left(stage)

    play(story)


def test_starts_that_were_accepted_survive_a_killed_server(play_alone: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.engine()
        workflow = collecting(Batch(1_000, 2.0))
        for number in range(20):
            await stage.client.collect(workflow, number, id=f"start-{number}")
        await stage.kill_server()
        for number in range(10, 30):
            await stage.client.collect(workflow, number, id=f"start-{number}")

        async def together() -> list[int]:
            return [each for found in (await inputs(stage)).values() for each in found]

        await stage.until("all are in a run", together, lambda found: len(found) >= 30)
        await stage.settled()
        assert await together() == list(range(30))
        for run in await inputs(stage):
            await stage.ended(run)

    play_alone(story)
