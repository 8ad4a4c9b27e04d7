"""A message on a subject is one run and its source is held, whichever engine dies in it and where.

Real processes; the window is hit by a failpoint. The server hands the message out again."""

from __future__ import annotations

import msgspec
import pytest
from tests.crash.chain import Baton, seed
from tests.crash.conftest import Play
from tests.crash.stage import Stage, loops

from treadle.sdk.client import Subject

pytestmark = pytest.mark.slow


async def create(stage: Stage, subject: str) -> None:
    on = Subject(subject, max_in_flight=2)
    await stage.client.triggers.create("orders", loops(), on)


async def publish(stage: Stage, subject: str, count: int) -> None:
    for number in range(count):
        baton = Baton(state=seed(f"order-{number}"), iterations=1)
        stage.js.connection.publish(subject, msgspec.json.encode(baton))
    await stage.js.connection.flush()


async def requests(stage: Stage) -> list[str]:
    """Return the ids of all runs, once for each request."""
    s = stage.subjects
    found: list[str] = []
    async for event in stage.js.read(s.events_stream, s.all_events):
        if b'"run.requested"' in event.data:
            found.append(s.parse_event(event.subject).run)
    return found


async def all_ended(stage: Stage, count: int) -> None:
    """Wait until there are so many runs, and each of them has ended."""

    async def ended() -> list[str]:
        found: list[str] = []
        for run in set(await requests(stage)):
            document = await stage.document(run)
            if document is not None and document.is_terminal:
                found.append(document.status)
        return found

    done = await stage.until("all runs end", ended, lambda found: len(found) == count)
    assert done == ["completed"] * count


@pytest.mark.parametrize("window", ["engine.message-taken", "engine.message-run-requested"])
@pytest.mark.parametrize("how", ["kill", "stop"])
def test_messages_are_one_run_each_although_an_engine_died_or_slept_at(
    play: Play, window: str, how: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}={how}@2")
        subject = f"{stage.subjects.namespace}-orders"
        await create(stage, subject)
        await publish(stage, subject, 3)
        await (doomed.died() if how == "kill" else doomed.stopped())
        stage.engine()
        stage.worker()
        await all_ended(stage, 3)
        if how == "stop":
            doomed.go_on()
        await stage.settled()
        await all_ended(stage, 3)

    play(story)


@pytest.mark.parametrize("window", ["engine.source-held", "engine.source-released"])
def test_a_source_follows_its_trigger_although_an_engine_was_killed_at(
    play: Play, window: str
) -> None:
    async def story(stage: Stage) -> None:
        doomed = stage.engine(f"{window}=kill@1")
        subject = f"{stage.subjects.namespace}-orders"
        await create(stage, subject)
        if window == "engine.source-released":
            await stage.client.triggers.delete("orders")
        await doomed.died()
        stage.engine()
        stage.worker()
        if window == "engine.source-held":
            await publish(stage, subject, 1)
            await all_ended(stage, 1)
            await stage.client.triggers.delete("orders")

        async def left() -> list[str]:
            answer = await stage.js.api("STREAM.NAMES", {"subject": subject})
            return answer.get("streams") or []

        await stage.until("nothing is left", left, lambda streams: not streams)

    play(story)
