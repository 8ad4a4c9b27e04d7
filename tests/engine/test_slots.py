"""Limits on a real server: how many at a time, in a while, and whose turn it is.
Method: handlers note when they begin and end, each in its own words; engines run in this loop."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

from tests.crash.process import wait_until
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk import Workflow
from treadle.sdk.flow import Concurrency
from treadle.worker import TaskContext, Worker


class Notes:
    """What handlers noted: how many ran at a time, by key, and in which order they began."""

    def __init__(self) -> None:
        self.now: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.begun: list[Any] = []
        self.together: Counter[str] = Counter()

    async def run(self, key: str, what: Any) -> None:
        self.now[key] += 1
        self.most[key] = max(self.most[key], self.now[key])
        self.begun.append(what)
        await wait_until("as many run as may", lambda: self.most[key] >= self.together[key])
        await asyncio.sleep(0.02)
        self.now[key] -= 1


def working(notes: Notes, type: str = "work") -> Worker:
    worker = Worker()

    @worker.handler(type)
    async def work(ctx: TaskContext[Any]) -> str:
        await notes.run(ctx.input["customer"], ctx.run)
        return "done"

    return worker


def test_no_more_than_the_limit_of_each_key_run_at_a_time(play: Play) -> None:
    workflow = Workflow("orders")
    workflow.task("charge", "work", concurrency=Concurrency(2, key='input["customer"]'))

    async def story(stand: Stand) -> None:
        notes = Notes()
        notes.together.update(c0=2, c1=2)
        await stand.engine()
        await stand.engine()
        stand.worker(working(notes))
        runs = [
            await stand.client.start(workflow, {"customer": f"c{n % 2}"}, id=f"r{n}")
            for n in range(14)
        ]
        for run in runs:
            assert await run.result(timeout_s=15) == "done"
        assert notes.most == {"c0": 2, "c1": 2}
        assert len(notes.begun) == 14

    play(story)
