"""An engine that starts again over finished and unfinished runs: it does what is left, only."""

from __future__ import annotations

import asyncio

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop, open_stand

from treadle.sdk.messages import Ended, StepCompleted, Task
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

FINISHED = 50


async def _last_sequences(stand: Stand) -> list[int]:
    s = stand.subjects
    names = (s.events_stream, s.steps_stream, s.runs_stream, s.dead_stream, s.timers_stream)
    return [int((await stand.state(name))["last_seq"]) for name in names]


async def _finish(stand: Stand, run: str) -> None:
    await stand.client.start(loop(), {}, id=run)
    token = (await stand.holds(Task, run)).token
    await stand.publish(StepCompleted(step="loop", type="link", token=token, head=token), run)
    await stand.ended(run)


@pytest.mark.slow
def test_an_engine_restarted_over_fifty_finished_runs_does_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await asyncio.gather(*(_finish(stand, f"run{n}") for n in range(FINISHED)))
        await stand.quiet(0.3)
        await stand.stop(engine)
        before = await _last_sequences(stand)
        await stand.engine()
        await stand.quiet(0.5)
        assert await _last_sequences(stand) == before

    play(story)


@pytest.mark.slow
def test_events_all_delivered_again_change_nothing_of_finished_runs(play: Play) -> None:
    """Also when the engines' consumer was lost: everything comes again, from the beginning."""

    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await asyncio.gather(*(_finish(stand, f"run{n}") for n in range(10)))
        await stand.quiet(0.3)
        await stand.stop(engine)
        before = await _last_sequences(stand)
        stream, consumer = stand.subjects.events_stream, stand.subjects.engine_consumer(0)
        await stand.js.api(f"CONSUMER.DELETE.{stream}.{consumer}")
        await stand.engine()
        await stand.quiet(0.5)
        assert await _last_sequences(stand) == before

    play(story)


def test_what_was_asked_while_no_engine_ran_is_done_by_the_next(play: Play) -> None:
    async def story(stand: Stand) -> None:
        engine = await stand.engine()
        await stand.client.start(loop(), {}, id="run")
        token = (await stand.holds(Task)).token
        await stand.stop(engine)
        await stand.continues(token, 1)
        await stand.client.signal("run", "note")
        await stand.client.start(loop(), {}, id="other")
        await stand.client.cancel("run")
        await stand.engine()
        await stand.holds(Task, "other")
        await stand.holds(Ended)
        ended = await stand.ended()
        assert (ended.status, ended.signals_received) == ("cancelled", 1)

    play(story)


def test_an_engine_stops_soon_while_the_server_is_away(
    own_server: NatsServer, namespace: str
) -> None:
    async def story() -> None:
        async with open_stand(Settings(url=own_server.url, namespace=namespace)) as stand:
            engine = await stand.engine()
            own_server.kill()
            async with asyncio.timeout(5):
                await stand.stop(engine)

    asyncio.run(story())
