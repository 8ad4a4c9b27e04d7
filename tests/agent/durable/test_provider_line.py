"""Runs in the line before a provider: called when there is room, by whoever lives, in their order.

A real server and engine, worker processes, and the fake model, which says when it was asked.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.agent.durable.stand import PATIENCE_S, stand
from tests.agent.durable.test_provider_budget import answer, started, until_in_line
from tests.agent.durable.test_stream import talking

from treadle.sdk import RunCancelled
from treadle.sdk.settings import Settings
from treadle.worker.agent import ProviderBudget
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.testing import (
    Gate,
    RecordedRequest,
    Turn,
    error,
    stall_after,
    text,
    turn,
)

AT_ONCE = RetryPolicy(wait_s_max=0.0)
"""Whoever is too early waits without a worker."""
SHORT = {"input_tokens": 10, "output_tokens": 5, "cache_creation_input_tokens": 0}
ONE_CALL = ProviderBudget(tokens_per_minute=1_700)
"""By what is reserved there is room for one call, and by what calls use for many."""


@pytest.mark.slow
def test_answers_that_are_shorter_than_estimated_call_those_who_sleep(settings: Settings) -> None:
    async def story() -> None:
        turns: list[Turn] = [turn(text("done"), usage=SHORT)] * 8
        options = {"provider_budget": ONE_CALL, "model_retry": AT_ONCE}
        async with talking(settings, turns, **options) as (client, _):
            runs = [await client.start("orders", "Late?", id=f"r{n}") for n in range(8)]
            # By what is reserved, there would be one call in 40 s.
            async with asyncio.timeout(30):
                assert [await run.result() for run in runs] == ["done"] * 8
            for run in runs:
                assert (await run.get()).step("answer").iterations == 1, "waits are no iterations"

    asyncio.run(story())


@pytest.mark.slow
def test_a_429_keeps_its_place_and_newcomers_come_after_it(settings: Settings) -> None:
    async def story() -> None:
        turns: list[Turn] = [error(429, retry_after=2), turn(text("first")), turn(text("second"))]
        options = {"provider_budget": ProviderBudget(), "model_retry": AT_ONCE}
        async with talking(settings, turns, **options) as (client, fake):
            first = await client.start("orders", "Late?", id="r1")
            await until_in_line(first, "answer")
            assert fake.count == 1
            second = await client.start("orders", "Late?", id="r2")
            await until_in_line(second, "answer")
            assert {await first.result(), await second.result()} == {"first", "second"}

    asyncio.run(story())


@pytest.mark.slow
def test_after_a_429_comes_the_refused_run_then_the_sleepers_in_order_then_newcomers(
    settings: Settings,
) -> None:
    asked, gate = list[str](), Gate()

    def play(request: RecordedRequest) -> Turn:
        name = next(name for name in "vwxyz" if f"letter-{name}" in request.raw.decode())
        asked.append(name)
        if asked == ["v", "w"]:
            return error(429, retry_after=2)
        stall = stall_after(0, gate=gate) if name == "v" else None
        return turn(text(f"to {name}"), usage=SHORT, fault=stall)

    async def story() -> None:
        # Each call comes after the one before it.
        options = {"provider_budget": ONE_CALL, "model_retry": AT_ONCE}
        async with talking(settings, play, **options) as (client, fake):
            runs = [await client.start("orders", "letter-v", id="v")]
            while not fake.count:
                await asyncio.sleep(0.01)
            for name in "wxy":
                runs.append(await client.start("orders", f"letter-{name}", id=name))
                await until_in_line(runs[-1], "answer")
            gate.open()
            while fake.count < 2:
                await asyncio.sleep(0.01)
            runs.append(await client.start("orders", "letter-z", id="z"))
            assert [await run.result() for run in runs] == [f"to {name}" for name in "vwxyz"]
            assert asked == ["v", "w", *"wxyz"]

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S)
@pytest.mark.parametrize("window", ["agent.line-entered", "agent.call-waits", "agent.line-left"])
def test_a_worker_that_is_killed_in_the_line_holds_up_nobody(
    settings: Settings, tmp_path: Path, window: str
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, answer) as place:
            budget = {"PAY_TOKENS_PER_MINUTE": "6000"}
            doomed = place.worker(f"{window}=kill@1", **budget)
            runs = await started(place, *(f"r{n}" for n in range(14)))
            assert await place.ended(doomed) == -9
            place.worker(**budget)
            async with asyncio.timeout(2 * PATIENCE_S):
                await asyncio.gather(*(run.result() for run in runs))

    asyncio.run(story())


@pytest.mark.slow
def test_a_run_that_is_cancelled_in_the_line_lets_the_next_one_look(settings: Settings) -> None:
    async def story() -> None:
        budget = ProviderBudget(requests_per_minute=4)
        options = {"provider_budget": budget, "model_retry": AT_ONCE}
        async with talking(settings, [turn(text("done"))] * 6, **options) as (client, _):
            for n in range(4):
                await (await client.start("orders", "Late?", id=f"r{n}")).result()
            first = await client.start("orders", "Late?", id="a")
            await until_in_line(first, "answer")
            second = await client.start("orders", "Late?", id="b")
            late = (await until_in_line(second, "answer")).step("answer").due_ms
            await first.cancel()
            with pytest.raises(RunCancelled):
                await first.result(timeout_s=10)
            async with asyncio.timeout(10):
                while not 0 < (await second.get()).step("answer").due_ms < late - 5_000:
                    await asyncio.sleep(0.02)
            await second.cancel()

    asyncio.run(story())
