"""Whoever dies with a slot, or while he takes, gives or waits for one: no more run than may, and no
slot is lost. Method: real processes; the windows are hit by failpoints, one minute by chance. That
not too many run the kernel says (places.py)."""

from __future__ import annotations

import asyncio
import random
import time

import pytest
from tests.crash.conftest import Play
from tests.crash.slots import (
    all_can_be_used,
    all_free,
    assert_never_too_many,
    begun,
    guarded,
    start,
)
from tests.crash.stage import Stage

from treadle.sdk.flow import RateLimit

MINUTE_S = 60.0
KEYS, LIMIT = ("a", "b"), 3


@pytest.mark.slow
def test_the_slot_of_a_worker_that_is_killed_goes_to_who_waits(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        doomed = stage.worker()
        workflow = guarded(1)
        await start(stage, "first", workflow, waits="gate")
        await stage.begun(1)
        await start(stage, "second", workflow, waits="gate")
        doomed.kill()
        stage.open_gate()
        stage.worker()
        for name in ("first", "second"):
            await stage.ended(name)
        await all_free(stage)
        assert_never_too_many(stage)
        assert len(begun(stage)) == 5, "two of two, and the one that was killed"

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize(
    "window",
    [
        # A register that asks: stored, a slot decided, taken, and given out.
        "engine.register-created=kill@2",
        "engine.slots-decided=kill@1",
        "engine.slots-stored=kill@1",
        "engine.slots-held=kill@1",
        "engine.task-admitted=kill@1",
        # One that waits: seen that it must, stored, noted.
        "engine.slot-missed=kill@1",
        "engine.waiter-stored=kill@1",
        "engine.waiter-noted=kill@1",
        # An iteration, a retry and the end: the register moved on, its slot freed and granted.
        "engine.register-stored=kill@1",
        "engine.register-stored=kill@3",
        "engine.slots-decided=kill@6",
        "engine.slots-stored=kill@6",
        "engine.slots-stored=kill@8",
        "engine.grant-finished=kill@1",
        "engine.grant-finished=kill@3",
        "engine.slots-left=kill@1",
        "engine.before-ack=kill@4",
    ],
)
def test_no_slot_is_lost_although_the_engine_was_killed_at(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        workflow = guarded(1)
        names = [f"r{number}" for number in range(4)]
        for name in names:
            await start(stage, name, workflow, fails_at=[1])
        await doomed.died()
        stage.engine()
        for name in names:
            await stage.ended(name)
        await all_free(stage)
        await all_can_be_used(stage, workflow, 1, "k")
        assert_never_too_many(stage)

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["engine.rate-reserved=kill@2", "engine.task-admitted=kill@2"])
def test_a_task_that_came_too_early_comes_although_its_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(window)
        stage.worker()
        workflow = guarded(2, (RateLimit(4, 1.0, burst=1),))
        for name in ("r1", "r2", "r3"):
            await start(stage, name, workflow)
        await doomed.died()
        stage.engine()
        for name in ("r1", "r2", "r3"):
            await stage.ended(name)
        await all_free(stage)
        assert_never_too_many(stage)

    play(story)


@pytest.mark.slow
@pytest.mark.parametrize("window", ["engine.slots-decided", "engine.slots-held"])
def test_an_engine_that_was_held_up_neither_takes_nor_keeps_a_slot(play: Play, window: str) -> None:
    async def story(stage: Stage) -> None:
        paused = stage.engine(f"{window}=stop@1")
        stage.worker()
        workflow = guarded(1)
        for name in ("r1", "r2", "r3"):
            await start(stage, name, workflow)
        await paused.stopped()
        stage.engine()
        await stage.ended("r1")
        paused.go_on()
        for name in ("r2", "r3"):
            await stage.ended(name)
        await all_free(stage)
        await all_can_be_used(stage, workflow, 1, "k")
        assert_never_too_many(stage)

    play(story)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_holders_killed_at_random_for_a_minute_exceed_no_limit_and_lose_no_slot(
    play: Play,
) -> None:
    async def story(stage: Stage) -> None:
        chance = random.Random(20)
        workflow = guarded(LIMIT)
        engines = [stage.engine(), stage.engine()]
        workers = [stage.worker(concurrency=8) for _ in range(3)]
        runs: list[str] = []
        kills, ends_at = 0, time.monotonic() + MINUTE_S
        while time.monotonic() < ends_at:
            for key in KEYS:
                runs.append(f"r{len(runs)}")
                work_ms = chance.randint(5, 120)
                await start(stage, runs[-1], workflow, key=key, iterations=4, work_ms=work_ms)
            await asyncio.sleep(chance.uniform(0.1, 0.8))
            doomed = chance.randrange(len(workers))
            workers[doomed].kill()
            workers[doomed] = stage.worker(concurrency=8)
            kills += 1
            if kills % 8 == 0:
                engines.pop(0).kill()
                engines.append(stage.engine())
        for run in runs:
            await stage.ended(run, timeout_s=60)
        await all_free(stage)
        for key in KEYS:
            await all_can_be_used(stage, workflow, LIMIT, key)
        assert_never_too_many(stage)
        print(f"{kills} workers killed, {len(begun(stage))} executions of {len(runs)} runs")

    play(story)
