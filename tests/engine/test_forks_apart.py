"""What keeps a run that is made of another one apart: its id, its signals, its lane.

Method: an engine on a real server and no worker; the runs wait for signals.
"""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Workflow
from treadle.sdk.errors import RunConflict, UserError
from treadle.sdk.run import RunDocument


def waiting(name: str = "held", **options: Any) -> Workflow:
    """A workflow whose runs do not end by themselves."""
    workflow = Workflow(name, **options)
    first = workflow.wait_for_signal("first", signal="go")
    workflow.wait_for_signal("second", signal="more", after=first)
    return workflow


async def stored(stand: Stand, run: str) -> list[dict[str, Any]]:
    return [msgspec.json.decode(event.data) for event in await stand.events(run)]


def test_signals_that_another_fork_of_the_id_has_left_are_not_the_runs(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        client = stand.client
        source = await client.start(waiting(), id="source")
        await source.signal("more", "of the source")
        await stand.until("source", lambda: stand.document("source"), _has_signal)
        taken = await source.fork(from_step="first", id="taken")
        left, request = await stored(stand, "taken")
        assert left["fork"] == request["fork"]["nonce"] != ""
        again = await source.fork(from_step="first", id="again")
        assert (await stored(stand, "again"))[0]["fork"] != left["fork"], "one for each call"

        await client.start(waiting(), id="bare")
        other = await client.fork("bare", from_step="first", id="other")
        started = await client.start(waiting(), id="started")
        for run in (other, started):
            # A client has died before its request, or its request came second.
            await stand.publish(msgspec.json.encode(left), run.id)
            await run.signal("go")
            await run.signal("more", "its own")
            assert await run.result(timeout_s=10) == "its own"
        for run in (taken, again):
            await run.signal("go")
            assert await run.result(timeout_s=10) == "of the source"

    play(story)


def _has_signal(document: RunDocument | None) -> bool:
    return document is not None and bool(document.signals)


def test_a_fork_of_a_fork_has_the_signals_that_the_first_one_took_over(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        source = await stand.client.start(waiting(), id="source")
        await source.signal("more", 1)
        await stand.until("source", lambda: stand.document("source"), _has_signal)
        one = await source.fork(from_step="first", id="one")
        await stand.until("one", lambda: stand.document("one"), _has_signal)
        two = await one.fork(from_step="first", id="two")
        await two.signal("go")
        assert await two.result(timeout_s=10) == 1

    play(story)


def _has_ended(document: RunDocument | None) -> bool:
    return document is not None and document.is_terminal


async def _queued(stand: Stand, run: str, lane: str) -> None:
    document = await stand.until(run, lambda: stand.document(run), bool)
    assert document is not None
    assert (document.status, document.lane) == ("queued", lane)


def test_the_version_that_a_fork_takes_and_its_input_say_where_it_queues(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        client = stand.client
        free = await client.start(waiting(), id="free")
        await stand.until("free", lambda: stand.document("free"), bool)
        await client.register(waiting(concurrency=1))
        assert (await free.fork(id="at-once", version="same")).id == "at-once"
        await client.start("held", id="holds")
        await free.fork(id="latest", version="latest")
        await _queued(stand, "latest", "held")
        at_once = await stand.until("at-once", lambda: stand.document("at-once"), bool)
        assert at_once is not None and (at_once.status, at_once.lane) == ("running", "")

        await client.register(waiting())
        await client.fork("holds", id="freed", version="latest")
        freed = await stand.until("freed", lambda: stand.document("freed"), bool)
        assert freed is not None and (freed.status, freed.lane) == ("running", "")

        keyed = waiting("keyed", singleton="queue", singleton_key='input["of"]')
        for of in "ab":
            await client.start(keyed, {"of": of}, id=of)
        await stand.until("a", lambda: stand.document("a"), bool)
        await client.fork("a", id="a-as-b", input={"of": "b"})
        await _queued(stand, "a-as-b", "keyed:b")

    play(story)


def test_a_lane_that_a_start_gave_itself_is_kept(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(waiting(), id="mine", lane="own", singleton="skip")
        await stand.until("mine", lambda: stand.document("mine"), bool)
        await stand.client.register(waiting(timeout=60))
        await stand.client.fork("mine", id="skipped", version="latest")
        document = await stand.until("skipped", lambda: stand.document("skipped"), bool)
        assert document is not None
        assert (document.status, document.lane, document.singleton) == ("cancelled", "own", "skip")

    play(story)


def test_another_fork_under_an_id_that_is_taken_is_refused(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        workflow = Workflow("one")
        workflow.task("work")
        run = await stand.client.start(workflow, {"n": 1}, id="run")
        await run.cancel("again")
        await stand.until("run", lambda: stand.document("run"), _has_ended)
        calls: dict[str, dict[str, Any]] = {
            "whole": {},
            "input": {"input": {"n": 2}},
            "as-it-had": {"input": {"n": 1}},
            "step": {"from_step": "work"},
            "step-input": {"from_step": "work", "input": {"n": 2}},
        }
        for made, call in calls.items():
            assert (await run.fork(**call, id=made)).id == made
        assert (await run.retry(id="retry")).id == "retry"
        events = [len(await stand.events(made)) for made in (*calls, "retry")]
        for made in (*calls, "retry"):
            for name, call in calls.items():
                if name == made:
                    assert (await run.fork(**call, id=made)).id == made
                    continue
                with pytest.raises(RunConflict, match="was not made of run 'run' in this way"):
                    await run.fork(**call, id=made)
            if made != "retry":
                with pytest.raises(RunConflict, match="was not made of run 'run' in this way"):
                    await run.retry(id=made)
        assert (await run.retry(id="retry")).id == "retry"
        assert [len(await stand.events(made)) for made in (*calls, "retry")] == events
        with pytest.raises(UserError, match="version 'newest' is none of same, latest"):
            await stand.client.bulk.retry(version="newest")  # type: ignore[arg-type]

    play(story)
