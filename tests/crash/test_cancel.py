"""A cancel against everything a run can be doing: it ends once, and nothing runs after it."""

from __future__ import annotations

import asyncio
import random

import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk import RunConflict
from treadle.sdk.messages import CancelRequested, Delayed, Ended, Parked

pytestmark = pytest.mark.slow


async def _cancelled(stage: Stage) -> None:
    ended = await stage.ended()
    assert ended.status == "cancelled"
    # The register ends a moment after the document.
    _, register = await stage.holds(Ended)
    assert isinstance(register, Ended)
    assert register.outcome == "cancelled"


def test_a_cancel_before_the_document_exists_is_not_lost(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.start(iterations=3, statuses=("cancelled",))
        await stage.client.cancel("run", "too early")
        stage.worker()
        stage.engine()
        await _cancelled(stage)
        await stage.settled()
        assert not [each for each in stage.effects() if each["kind"] == "end"]

    play(story)


def test_a_cancel_that_overtook_its_start_is_not_lost(play: Play) -> None:
    async def story(stage: Stage) -> None:
        await stage.publish(CancelRequested(reason="first"))
        stage.engine()
        await stage.start(iterations=3, statuses=("cancelled",))
        await stage.ended()

    play(story)


def test_a_cancel_while_the_loop_is_delayed_ends_it_at_once(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.worker()
        await stage.start(workflow=loops(loop_delay=20.0), iterations=3, statuses=("cancelled",))
        await stage.holds(Delayed)
        await stage.client.cancel("run")
        await _cancelled(stage)
        await stage.quiet(1.0)
        assert {each["iteration"] for each in stage.effects()} == {0}

    play(story)


def test_a_cancel_while_an_iteration_executes_reaches_the_handler(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.worker()
        await stage.start(iterations=3, work_ms=1_000, statuses=("cancelled",))
        await stage.begun(1)
        await stage.client.cancel("run")
        await _cancelled(stage)
        await stage.quiet(1.2)
        # Its second of work was cut short: it never came to its end.
        assert [each["kind"] for each in stage.effects()] == ["begin"]

    play(story)


def test_a_cancel_of_a_parked_run_ends_it(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.worker()
        await stage.start(
            workflow=loops(max_iterations=2, on_limit="park"),
            iterations=5,
            statuses=("cancelled",),
        )
        await stage.holds(Parked)
        await stage.status("run", "parked")
        await stage.client.cancel("run")
        await _cancelled(stage)

    play(story)


def test_a_cancel_after_the_end_changes_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        stage.worker()
        await stage.start(iterations=2)
        before = await stage.ended()
        with pytest.raises(RunConflict, match="completed"):
            await stage.client.cancel("run")
        await stage.publish(CancelRequested(reason="late"))
        await stage.quiet(0.5)
        assert await stage.document() == before

    play(story)


def test_a_cancel_that_races_with_the_last_verdict_gives_one_end(play: Play) -> None:
    offsets_s = [random.Random(7).uniform(0, 0.12) for _ in range(12)]

    async def story(stage: Stage) -> None:
        engines = stage.engine(), stage.engine()
        worker = stage.worker()
        for process in (*engines, worker):
            await process.said(".ready")

        async def one(number: int, offset_s: float) -> None:
            run = f"run{number}"
            await stage.start(run, iterations=3, work_ms=15, statuses=("completed", "cancelled"))
            await asyncio.sleep(offset_s)
            await stage.publish(CancelRequested(), run)
            await stage.ended(run)

        await asyncio.gather(*(one(*each) for each in enumerate(offsets_s)))
        await stage.settled()

    play(story)
