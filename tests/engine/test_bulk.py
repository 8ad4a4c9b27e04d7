"""One action on many runs, on a real server: which runs, each once, and the others when one fails.
Method: an engine and workers whose handlers count their executions; damage written by hand."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Workflow
from treadle.sdk.client.bulk import BulkOutcome, act_on_all
from treadle.sdk.client.store import Store
from treadle.sdk.errors import RunFailed, ServerUnavailable, UserError
from treadle.worker import TaskContext, Worker


class Orders:
    """Runs that fail until the shop is open."""

    def __init__(self) -> None:
        self.done: Counter[str] = Counter()
        self.is_open = False
        self.worker = Worker()
        self.workflow = Workflow("order")
        self.workflow.task("ship", after=self.workflow.task("pack"))

        @self.worker.handler("pack")
        @self.worker.handler("ship")
        async def work(ctx: TaskContext[Any]) -> str:
            self.done[ctx.step] += 1
            if ctx.step == "ship" and not self.is_open:
                raise ValueError("closed")
            return ctx.step

    async def fail(self, stand: Stand, count: int) -> list[str]:
        await stand.engine()
        stand.worker(self.worker)
        await stand.client.register(self.workflow)
        names = [f"order-{n}" for n in range(count)]
        for n, name in enumerate(names):
            await stand.client.start("order", id=name, metadata={"batch": "ab"[n % 2]})
        for name in names:
            with pytest.raises(RunFailed):
                await stand.client.result(name, timeout_s=10)
        return names


async def waiting(stand: Stand, count: int) -> list[str]:
    """Start runs that wait for a signal."""
    await stand.engine()
    workflow = Workflow("idle")
    workflow.wait_for_signal("go")
    await stand.client.register(workflow)
    names = [f"idle-{n}" for n in range(count)]
    await asyncio.gather(*(stand.client.start("idle", id=name) for name in names))
    await asyncio.gather(*(stand.status(name, "running") for name in names))
    return names


def test_a_bulk_retry_tries_each_run_that_matches_once_however_often_it_is_called(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        orders = Orders()
        await orders.fail(stand, 5)
        orders.is_open = True
        bulk = stand.client.bulk
        dry = await bulk.retry(where={"batch": "a"}, dry_run=True)
        assert (dry.matched, dry.counts) == (3, {"would": 3})
        seen: list[BulkOutcome] = []
        report = await bulk.retry(workflow="order", where={"batch": "a"}, each=seen.append)
        assert (report.matched, report.counts, report.is_complete) == (3, {"done": 3}, True)
        assert {each.run: each.made for each in seen} == {
            name: f"{name}-r1" for name in ("order-0", "order-2", "order-4")
        }
        for each in seen:
            assert await stand.client.result(each.made, timeout_s=10) == "ship"
        again = await bulk.retry(workflow="order", where={"batch": "a"})
        assert again.counts == {"unchanged": 3}
        assert orders.done == {"pack": 5, "ship": 8}

    play(story)


@pytest.mark.slow
def test_one_run_that_fails_is_reported_and_the_others_go_on(play: Play) -> None:
    async def story(stand: Stand) -> None:
        orders = Orders()
        names = await orders.fail(stand, 4)
        orders.is_open = True
        damaged = stand.register_subject(names[1], "pack", "pack")
        await stand.js.store(damaged, b"{not json")
        gone = stand.register_subject(names[2], "pack", "pack")
        await stand.js.purge(stand.subjects.steps_stream, gone)
        report = await stand.client.bulk.retry(at_once=1)
        assert report.counts == {"done": 2, "failed": 1, "refused": 1}
        assert not report.is_complete
        said = {each.run: each.error for each in report.failures}
        assert said.keys() == {names[1], names[2]}
        assert "cannot be read" in said[names[1]]
        assert "has lost the output of step 'pack'" in said[names[2]]

    play(story)


@pytest.mark.slow
def test_all_that_run_are_paused_resumed_and_cancelled_and_nothing_else_is(play: Play) -> None:
    async def story(stand: Stand) -> None:
        names = await waiting(stand, 5)
        bulk = stand.client.bulk
        await stand.client.signal(names[0], "go")
        await stand.status(names[0], "completed")
        assert (await bulk.pause(reason="maintenance", workflow="idle")).counts == {"done": 4}
        for name in names[1:]:
            await stand.status(name, "paused")
        assert (await bulk.pause(status="paused")).counts == {"unchanged": 4}
        assert (await bulk.resume()).counts == {"done": 4}
        for name in names[1:]:
            await stand.status(name, "running")
        assert (await bulk.cancel(reason="over")).counts == {"done": 4}
        for name in names[1:]:
            await stand.status(name, "cancelled")
        assert (await bulk.cancel()).matched == 0
        assert (await stand.client.get(names[0])).status == "completed"

    play(story)


@pytest.mark.slow
def test_a_run_whose_parent_matches_too_is_left_to_it(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        child = Workflow("child")
        child.wait_for_signal("go")
        parent = Workflow("parent")
        parent.sub_workflow("call", child)
        await stand.client.register(child)
        run = await stand.client.start(parent, id="top")
        children = await stand.client.children(run.id)
        while not children or children[0].status != "running":
            await asyncio.sleep(0.01)
            children = await stand.client.children(run.id)
        report = await stand.client.bulk.cancel()
        assert report.counts == {"done": 1, "covered": 1}
        await stand.status(run.id, "cancelled")
        await stand.status(children[0].id, "cancelled")

    play(story)


def test_no_more_runs_than_asked_are_acted_on_at_once_and_a_server_that_is_gone_stops_it(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await waiting(stand, 9)
        store = Store(stand.js, stand.subjects)
        under_way, most, acted = 0, 0, 0

        async def act(view: Any) -> BulkOutcome:
            nonlocal under_way, most, acted
            under_way += 1
            most = max(most, under_way)
            await stand.client.get(view.id)
            under_way -= 1
            acted += 1
            if acted == 5:
                raise ServerUnavailable("it is gone")
            return BulkOutcome(run=view.id, result="done")

        with pytest.raises(ServerUnavailable):
            await act_on_all(store, "cancel", {"at_once": 3}, act)
        assert most == 3
        assert 5 <= acted < 9
        with pytest.raises(UserError, match="1 to 256 runs are acted on together"):
            await stand.client.bulk.cancel(at_once=0)
        with pytest.raises(UserError, match="no run that is 'completed' can be asked to cancel"):
            await stand.client.bulk.cancel(status="completed")

    play(story)
