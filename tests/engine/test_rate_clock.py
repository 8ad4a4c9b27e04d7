"""Rates go by the server's clock: one engine's own, wrong by an hour, holds up and hurries nobody.

Method: an engine and a worker on a real server, with the clock of their machine set wrong for a
while. That of the server is set back where an engine reads it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.engine.rates import Rates
from treadle.engine.server_clock import ServerClock
from treadle.sdk import Workflow
from treadle.sdk.flow import RateLimit
from treadle.sdk.messages import RateClaim
from treadle.worker import TaskContext, Worker

HOUR_S = 3600


@pytest.mark.parametrize("wrong_by_s", [HOUR_S, -HOUR_S])
def test_a_clock_that_was_wrong_for_a_while_neither_holds_up_nor_hurries_anybody(
    play: Play, monkeypatch: pytest.MonkeyPatch, wrong_by_s: int
) -> None:
    workflow = Workflow("paced")
    workflow.task("send", "work", rate_limits=RateLimit(10, 1.0, burst=1))
    worker, begun = Worker(), list[float]()

    @worker.handler("work")
    async def work(ctx: TaskContext[Any]) -> None:
        begun.append(time.monotonic())

    async def story(stand: Stand) -> None:
        true_ns = time.time_ns
        await stand.engine()
        stand.worker(worker)
        names = [f"r{n}" for n in range(4)]
        with monkeypatch.context() as wrong:
            wrong.setattr(time, "time_ns", lambda: true_ns() + wrong_by_s * 10**9)
            for name in names[:2]:
                await stand.client.start(workflow, id=name)
            for name in names[:2]:
                await stand.ended(name)
        for name in names[2:]:
            await stand.client.start(workflow, id=name)
        for name in names[2:]:
            await stand.ended(name)
        # A clock may be as much ahead as a delay tolerates; nothing else is early.
        assert all(at - begun[0] >= n * 0.1 - 0.12 for n, at in enumerate(sorted(begun)))

    play(story)


def test_what_is_reserved_counts_from_when_the_servers_clock_was_set_back(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim = RateClaim("k", "a rate", 1_000_000, 1, 1_000)

    async def story(stand: Stand) -> None:
        await stand.engine()
        rates = Rates(stand.js, stand.subjects)
        assert await rates.due_ms((claim,), 1) == 0
        assert await rates.due_ms((claim,), 1) > await rates.now_ms()
        ask = ServerClock._ask  # pyright: ignore[reportPrivateUsage]

        async def set_back(clock: ServerClock) -> None:
            await ask(clock)
            clock._ahead_us -= HOUR_S * 1_000_000  # pyright: ignore[reportPrivateUsage]

        monkeypatch.setattr(ServerClock, "_ask", set_back)
        others = Rates(stand.js, stand.subjects)
        before_ms = await others.now_ms()
        due_ms = await others.due_ms((claim,), 1)
        assert before_ms < due_ms <= await others.now_ms() + 2_000

    play(story)


def test_the_server_is_asked_for_its_time_once_a_second_at_most(play: Play) -> None:
    claims = tuple(RateClaim(f"k{n}", "a rate", 1, 1, 1_000) for n in range(10))
    asked: list[str] = []

    async def story(stand: Stand) -> None:
        await stand.engine()
        rates, api = Rates(stand.js, stand.subjects), stand.js.api

        async def counted(tail: str, *args: Any, **more: Any) -> Any:
            asked.append(tail)
            return await api(tail, *args, **more)

        stand.js.api = counted  # type: ignore[method-assign]
        since_s = time.monotonic()
        for _ in range(20):
            await rates.due_ms(claims, 1)
        assert 1 <= len(asked) <= 1 + (time.monotonic() - since_s)

    play(story)
