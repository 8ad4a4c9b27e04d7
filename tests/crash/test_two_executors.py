"""Two executions of one task, late verdicts and verdicts delivered again: one of them counts.

A zombie is a process stopped with SIGSTOP past every time limit, and let go on later.
"""

from __future__ import annotations

import asyncio
import secrets

import msgspec
import pytest
from tests.crash.conftest import Play
from tests.crash.stage import Stage

from treadle.sdk.bus.connection import Message
from treadle.sdk.messages import Ended

pytestmark = pytest.mark.slow

ZOMBIES = (
    "worker.received",
    "worker.checkpoint-before",
    "worker.checkpoint-stored",
    "worker.settle-before",
    "worker.settle-stored",
)


def test_zombie_workers_that_wake_at_their_old_places_change_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        stage.engine()
        # Few slots each: what a frozen process has asked for is swallowed until it expires.
        zombies = [stage.worker(f"{window}=stop@5", concurrency=2) for window in ZOMBIES]
        for number in range(6):
            await stage.start(f"run{number}", iterations=25, work_ms=20)
        for zombie in zombies:
            await zombie.stopped()
        stage.worker()
        for number in range(6):  # In the middle of the loops, and past their own iterations.
            await stage.reached(12, f"run{number}")
        for zombie in zombies:
            zombie.go_on()
        for number in range(6):
            await stage.ended(f"run{number}")
        await stage.settled()

    play(story)


def test_a_zombie_engine_that_wakes_after_a_cancel_starts_nothing(play: Play) -> None:
    async def story(stage: Stage) -> None:
        zombie = stage.engine("engine.document-stored=stop@1")
        await stage.start(iterations=5, statuses=("cancelled",))
        await zombie.stopped()
        stage.engine()
        await stage.client.cancel("run")
        await stage.ended()
        before = len(stage.effects())
        stage.worker()
        zombie.go_on()
        await stage.settled()
        assert len(stage.effects()) == before
        await stage.holds(Ended)

    play(story)


@pytest.mark.parametrize("saves", [True, False], ids=["checkpoint", "no-checkpoint"])
def test_of_two_executors_of_one_token_one_counts(play: Play, saves: bool) -> None:
    """The consumer is made anew while a worker executes: the task is a first delivery again."""

    async def story(stage: Stage) -> None:
        stage.engine()
        # One task at a time: the second delivery cannot reach the process that executes.
        first = stage.worker(concurrency=1)
        await stage.start(iterations=3, wait_at=0, saves=saves)
        await stage.begun(1)
        name = stage.subjects.worker_consumer("link")
        await stage.js.api(f"CONSUMER.DELETE.{stage.subjects.steps_stream}.{name}")
        # Only now: one made anew while the server still deletes may inherit what was given out.
        second = stage.worker(concurrency=1)
        await stage.begun(2)
        stage.open_gate()
        begins = [each for each in stage.effects() if each["kind"] == "begin"][:2]
        assert {each["pid"] for each in begins} == {first.pid, second.pid}
        assert {(each["iteration"], each["attempt"]) for each in begins} == {(0, 1)}
        await stage.ended()
        await stage.settled()

    play(story)


def test_a_verdict_delivered_again_moves_nothing(play: Play) -> None:
    """Each is stored again with another message id at once, and with its own after the window."""

    async def story(stage: Stage) -> None:
        engine = stage.engine()
        await engine.said("engine.ready")
        await stage.widen_repeats()
        seen: set[bytes] = set()
        repeats: set[asyncio.Task[None]] = set()

        async def repeat(data: bytes, own_id: str) -> None:
            subject = stage.subjects.event("run")
            await stage.js.store(subject, data, message_id=secrets.token_hex(8))
            await asyncio.sleep(0.25)
            await stage.js.store(subject, data, message_id=own_id)

        def take(message: Message) -> None:
            if b'"step.' in message.data and message.data not in seen:
                seen.add(message.data)
                own_id = message.headers.get("Nats-Msg-Id", "")
                repeats.add(asyncio.create_task(repeat(message.data, own_id)))

        await stage.js.connection.subscribe(stage.subjects.all_events, take)
        stage.worker()
        await stage.start(iterations=12, work_ms=30)
        await stage.ended()
        await asyncio.gather(*repeats)
        await stage.settled()
        stored = [msgspec.json.decode(each.data)["event"] for each in await stage.events()]
        assert stored.count("step.continued") == 3 * 11
        assert stored.count("step.completed") == 3

    play(story)


def test_two_racing_engines_commit_every_iteration_of_twenty_loops_once(play: Play) -> None:
    async def story(stage: Stage) -> None:
        engines = stage.engine(), stage.engine()
        stage.worker()
        stage.worker()
        for engine in engines:
            await engine.said("engine.ready")
        for number in range(20):
            await stage.start(f"run{number}", iterations=12)
        for number in range(20):
            await stage.ended(f"run{number}")

    play(story)
