"""So many runs of a workflow, or of a key of it, are under way at once; the others wait in order.
Method: a real server, engines in this process; steps are settled by hand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.crash.chain import TASK_TYPE
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import UserError, Workflow, WorkflowDefinition
from treadle.sdk.client import Subject
from treadle.sdk.messages import StepCompleted, Task
from treadle.sdk.run import RunDocument


def few(places: int, **options: Any) -> WorkflowDefinition:
    workflow = Workflow("few", concurrency=places, **options)
    workflow.agent_loop("loop", TASK_TYPE, max_iterations=3)
    return workflow.build()


async def settle(stand: Stand, run: str) -> None:
    token = (await stand.holds(Task, run, "loop", TASK_TYPE)).token
    await stand.publish(StepCompleted(step="loop", type=TASK_TYPE, token=token, head=token), run)
    await stand.ended(run)


async def documents(stand: Stand, names: list[str]) -> list[RunDocument]:
    """Return the documents in the order of the requests."""
    found = [await stand.document(name) for name in names]
    return sorted((each for each in found if each), key=lambda each: each.requested)


def test_of_many_starts_at_once_as_many_run_as_may_and_they_follow_in_order(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        await stand.client.register(few(3))
        names = [f"r{n}" for n in range(12)]
        await asyncio.gather(*(stand.client.start("few", id=name) for name in names))
        await asyncio.gather(*(stand.status(name, "running", "queued") for name in names))
        order = [each.run for each in await documents(stand, names)]
        for place in range(len(order)):
            under_way, queued = order[place : place + 3], order[place + 3 :]
            await asyncio.gather(*(stand.status(name, "running") for name in under_way))
            statuses = {each.status for each in await documents(stand, queued)}
            assert statuses <= {"queued"}
            await settle(stand, order[place])

    play(story)


def test_a_place_in_the_middle_goes_to_the_first_that_waits(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        definition = few(2, concurrency_key='input["customer"]')
        for name in ("r1", "r2", "r3", "r4", "r5"):
            await stand.client.start(definition, {"customer": "big"}, id=name)
        await stand.client.start("few", {"customer": "small"}, id="other")
        for name in ("r1", "r2", "other"):
            await stand.status(name, "running")
        view = await stand.client.get("r5")
        assert view.ahead is not None
        assert (view.ahead.count, view.ahead.holder, view.ahead.places) == (4, "r1", 2)
        told = "queued in lane 'few:big' (2 at a time) behind 4 runs, held by r1"
        assert told in str(await stand.client.explain("r5"))
        await stand.client.cancel("r3")
        await stand.ended("r3")
        await settle(stand, "r2")
        await stand.status("r4", "running")
        await stand.quiet(0.2)
        assert (await stand.status("r5", "queued")).steps == {}
        await stand.client.cancel("r4")
        await stand.status("r5", "running")
        for name in ("r1", "r5", "other"):
            await settle(stand, name)

    play(story)


def test_a_new_number_counts_for_the_starts_of_its_version(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        for name in ("r1", "r2"):
            await stand.client.start(few(1), id=name)
        await stand.client.start(few(3), id="r3")
        await stand.status("r3", "running")
        await stand.client.start(few(2), id="r4")
        assert (await stand.status("r4", "queued")).places == 2
        await stand.status("r2", "queued")
        await settle(stand, "r1")
        await stand.status("r2", "running")
        await settle(stand, "r3")
        await stand.status("r4", "running")

    play(story)


def test_triggers_keep_to_it_and_nobody_chooses_another_lane(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.register(few(2))
        with pytest.raises(UserError, match="has a concurrency of 2, which says where"):
            await stand.client.start("few", lane="mine")
        subject = f"{stand.settings.namespace}-few"
        with pytest.raises(UserError, match="without a lane"):
            await stand.client.triggers.create("few", "few", Subject(subject), lane="mine")
        await stand.client.triggers.create("few", "few", Subject(subject))
        for _ in range(5):
            stand.js.connection.publish(subject, b"{}")
        await stand.until("the runs", stand.client.list, lambda found: len(found) == 5)
        await stand.quiet(0.2)
        statuses = sorted(view.status for view in await stand.client.list())
        assert statuses == ["queued"] * 3 + ["running"] * 2

    play(story)


def test_a_step_is_refused_that_might_wait_behind_a_run_above_its_own(play: Play) -> None:
    outer, middle = Workflow("outer", concurrency=1), Workflow("middle")
    outer.sub_workflow("below", "middle")
    middle.sub_workflow("above", "outer")

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.register(middle)
        await stand.client.start(outer, id="r1")
        failed = await stand.ended("r1")
        assert failed.failure is not None
        assert "might be queued in lane 'outer' behind run 'r1'" in failed.failure.message

    play(story)


def test_a_step_is_refused_that_might_wait_behind_its_own_run(play: Play) -> None:
    workflow = Workflow("few", concurrency=2, concurrency_key='input["n"]')
    workflow.sub_workflow("again", "few")

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(workflow, {"n": 1}, id="r1")
        failed = await stand.ended("r1")
        assert failed.failure is not None and failed.failure.type == "waits_for_itself"
        assert "might be queued in lane 'few:1' behind run 'r1'" in failed.failure.message

    play(story)
