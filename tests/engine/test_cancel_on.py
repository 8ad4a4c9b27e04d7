"""Events that cancel runs: those they fit and no other, wherever the run is, and nothing is left.
Method: two real engines; runs that are under way, queued, scheduled, over, and that undo."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.engine.test_events import waiters, waits

from treadle.sdk import NonRetryable, RunCancelled, RunFailed, Workflow
from treadle.sdk.errors import InvalidDefinition
from treadle.worker import LoopContext, TaskContext, Worker

NAME = "order.cancelled"
MATCH = 'event["order"] == input["order"]'


def order(**options: Any) -> Workflow:
    """Return a workflow of one loop that an event cancels."""
    workflow = Workflow("order", input=dict, cancel_on={NAME: MATCH}, **options)
    workflow.agent_loop("loop", "link", max_iterations=1_000_000)
    return workflow


def iterating() -> Worker:
    worker = Worker()

    @worker.handler("link")
    async def link(ctx: LoopContext[Any]) -> object:
        return ctx.continue_()

    return worker


def test_the_runs_that_an_event_fits_are_cancelled_with_its_name(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        stand.worker(iterating())
        runs = [await stand.client.start(order(), {"order": n}, id=f"r{n}") for n in (1, 2)]
        await waits(stand, 2)
        await stand.client.publish_event(NAME, {"order": 2}, id="c2")
        with pytest.raises(RunCancelled, match=r"event 'order.cancelled' \(c2\) was published"):
            await runs[1].result(timeout_s=10)
        assert (await runs[0].get()).status == "running"
        await waits(stand, 1)
        told = [e async for e in runs[1].history() if e.kind == "run.event_matched"]
        assert [(e.step, e.name) for e in told] == [("", f"{NAME} c2")]
        await runs[0].cancel()
        await stand.ended("r1")
        await waits(stand, 0)

    play(story)


def test_an_event_from_before_the_engine_saw_the_run_is_not_missed(play: Play) -> None:
    async def story(stand: Stand) -> None:
        run = await stand.client.start(order(), {"order": 1})
        await stand.client.publish_event(NAME, {"order": 1})
        await stand.engine()
        with pytest.raises(RunCancelled):
            await run.result(timeout_s=10)
        await waits(stand, 0)

    play(story)


def test_a_run_that_has_not_begun_is_cancelled_too(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(order(singleton="queue"), {"order": 1}, id="first")
        await stand.client.start(order(singleton="queue"), {"order": 2}, id="queued")
        later = await stand.client.start(order(), {"order": 2}, id="later", start_after=3_600)
        await waits(stand, 3)
        await stand.client.publish_event(NAME, {"order": 2})
        with pytest.raises(RunCancelled):
            await later.result(timeout_s=10)
        assert (await stand.ended("queued")).status == "cancelled"
        first = await stand.document("first")
        assert first is not None and first.status == "running"

    play(story)


def test_a_retry_is_not_cancelled_by_what_has_cancelled_its_first_run(play: Play) -> None:
    workflow = Workflow("order", input=dict, cancel_on={NAME: MATCH})
    workflow.wait_for_signal("paid")

    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(workflow, {"order": 1}, id="run")
        await waits(stand, 1)
        await stand.client.publish_event(NAME, {"order": 1})
        with pytest.raises(RunCancelled):
            await run.result(timeout_s=10)
        again = await run.retry()
        await waits(stand, 1)
        await again.signal("paid", 1)
        assert await again.result(timeout_s=10) == 1

    play(story)


def test_a_retry_is_cancelled_by_what_came_since_its_first_run_began(play: Play) -> None:
    workflow = Workflow("order", input=dict, cancel_on={NAME: MATCH})
    workflow.task("pay")
    worker = Worker()

    @worker.handler("pay")
    async def pay(ctx: TaskContext[Any]) -> None:
        if ctx.run == "run":
            raise NonRetryable("closed")
        await asyncio.Event().wait()  # It is stopped.

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, {"order": 1}, id="run")
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        await stand.client.publish_event(NAME, {"order": 1})
        with pytest.raises(RunCancelled):
            await (await run.retry()).result(timeout_s=10)

    play(story)


def test_a_retry_gets_the_events_that_its_first_run_did_not_wait_for_yet(play: Play) -> None:
    workflow = Workflow("order", input=dict)
    first = workflow.wait_for_event("first", "paid", match=MATCH)
    ship = workflow.task("ship", after=first)
    workflow.wait_for_event("second", "paid", match=MATCH, after=ship)
    worker, is_up = Worker(), [False]

    @worker.handler("ship")
    async def shipping(ctx: TaskContext[Any]) -> None:
        if not is_up[0]:
            raise NonRetryable("closed")

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, {"order": 1}, id="run")
        await stand.client.publish_event("paid", {"order": 1, "n": 1})
        with pytest.raises(RunFailed):
            await run.result(timeout_s=10)
        is_up[0] = True
        await stand.client.publish_event("paid", {"order": 1, "n": 2})
        again = await run.retry()
        assert await again.result(timeout_s=10) == {"order": 1, "n": 2}

    play(story)


def test_what_was_done_is_undone(play: Play) -> None:
    undone = list[object]()
    workflow = Workflow("trip", input=dict, cancel_on={NAME: MATCH})
    book = workflow.task("book", compensate="unbook")
    workflow.task("unbook")
    workflow.wait_for_signal("paid", after=book)
    worker = Worker()

    @worker.handler("book")
    async def book_it(ctx: TaskContext[Any]) -> str:
        return "seat 4"

    @worker.handler("unbook")
    async def unbook(ctx: TaskContext[Any]) -> None:
        undone.append(ctx.input)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        run = await stand.client.start(workflow, {"order": 1}, id="run")
        await stand.until(
            "it is booked",
            lambda: stand.document("run"),
            lambda document: document is not None and "paid" in document.steps,
        )
        await stand.client.publish_event(NAME, {"order": 1})
        await stand.client.publish_event(NAME, {"order": 1})
        with pytest.raises(RunCancelled):
            await run.result(timeout_s=10)
        assert undone == ["seat 4"]

    play(story)


def test_a_match_that_asks_for_what_is_not_there_cancels_nothing(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(order(), {}, id="run")
        await stand.status("run", "running")
        await stand.client.publish_event(NAME, {"order": 1})
        await stand.quiet(0.3)
        document = await stand.document("run")
        assert document is not None and document.status == "running"
        assert await waiters(stand) == []

    play(story)


@pytest.mark.parametrize(
    ("cancel_on", "reason"),
    [
        ({"not a name": ""}, "not a name"),
        ({"stop": 'steps["a"] == 1'}, "steps"),
        ({f"e{n}": "" for n in range(6)}, "6 events, and 5 are allowed"),
        ({"stop": "x" * 3_000}, "3000 characters"),
    ],
)
def test_what_cannot_cancel_is_refused_at_once(cancel_on: dict[str, str], reason: str) -> None:
    workflow = Workflow("w", cancel_on=cancel_on)
    workflow.task("a")
    with pytest.raises(InvalidDefinition, match="cancel_on") as refused:
        workflow.build()
    assert reason in str(refused.value)
