"""Workers ask a model's provider within one budget: two processes, 429s, kill -9, cancels.

A real server and engine, worker processes, and the fake model, which says when it was asked.
"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.durable.stand import PATIENCE_S, Stand, stand
from tests.agent.durable.test_faults import given_out
from tests.agent.durable.test_kill import payer
from tests.agent.durable.test_stream import talking

from treadle.sdk import RunCancelled, RunHandle
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.view import RunView
from treadle.sdk.messages import ProviderRecord
from treadle.sdk.provider_buckets import MINUTE_MS
from treadle.sdk.rfc3339 import written
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker.agent import Agent, ProviderBudget
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, error, text, turn
from treadle.worker.agent.testing import tool_use as call

PAID = turn(call("final_output", {"paid": 0}, id="final"))


def answer(request: RecordedRequest) -> Turn:
    return PAID


async def until_in_line(run: RunHandle, step: str) -> RunView:
    async with asyncio.timeout(PATIENCE_S):
        while not (view := await run.get()).step(step).line:
            await asyncio.sleep(0.02)
    assert view.status == "running", "it waits as it would for a worker"
    return view


async def started(place: Stand, *names: str) -> list[RunHandle]:
    return [await place.client.start(payer(), "Pay nothing.", id=name) for name in names]


async def record(settings: Settings) -> ProviderRecord:
    """Return what is stored of the only provider."""
    names, connection = Subjects(settings.namespace), await Connection.open(settings, name="test")
    try:
        js = JetStream(connection)
        stored = await js.last(names.limits_stream, names.provider("*"))
        assert stored is not None
        return msgspec.json.decode(stored.data, type=ProviderRecord)
    finally:
        await connection.close()


# ------------------------------------------------------------------ processes


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S)
def test_two_workers_together_ask_no_more_than_the_budget_and_hold_no_slot_for_the_rest(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, answer) as place:
            budget = {"PAY_REQUESTS_PER_MINUTE": "3", "PAY_SLOTS": "2"}
            place.worker(**budget)
            place.worker(**budget)
            runs = await started(place, "r1", "r2", "r3", "r4", "r5")
            async with asyncio.timeout(PATIENCE_S):
                views: list[RunView] = []
                while (
                    sum(view.status != "running" or view.step("pay").line != "" for view in views)
                    < 5
                ):
                    await asyncio.sleep(0.05)
                    views = [await run.get() for run in runs]
            assert place.fake.count == 3
            assert sorted(view.status for view in views) == ["completed"] * 3 + ["running"] * 2
            waits = [view for view in views if view.status == "running"]
            due = sorted(view.step("pay").due_ms / 1000 - time.time() for view in waits)
            assert due[1] <= 40
            assert 18 <= due[1] - due[0] <= 22, "one after the other"
            for view in waits:
                (note,) = view.notes
                assert note.kind == "provider_busy"
                assert "3 requests a minute" in note.text
                step = view.step("pay")
                assert (step.attempt, step.max_iterations - step.iterations) == (1, 20)
            while await given_out(settings, "pay-agent"):
                await asyncio.sleep(0.02)

    asyncio.run(story())


@pytest.mark.slow
@pytest.mark.timeout(3 * PATIENCE_S)
def test_what_a_killed_worker_has_reserved_comes_back_by_itself(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with stand(settings, tmp_path, answer) as place:
            (first,) = await started(place, "r1")
            budget = {"PAY_REQUESTS_PER_MINUTE": "2"}
            doomed = place.worker("agent.call-reserved=kill@1", **budget)
            assert await place.ended(doomed) == -9
            assert place.fake.count == 0
            place.worker(**budget)
            await asyncio.wait_for(first.result(), PATIENCE_S)
            (second,) = await started(place, "r2")
            view = await until_in_line(second, "pay")
            # The call of the dead and the one that was made: a place comes back in half a minute.
            assert view.step("pay").due_ms / 1000 - time.time() <= 30
            stored = await record(settings)
            assert stored.requests_full_ms <= time.time() * 1000 + MINUTE_MS
            await second.cancel("not needed")
            with pytest.raises(RunCancelled):
                await second.result(timeout_s=PATIENCE_S)

    asyncio.run(story())


# ------------------------------------------------------------------ what the provider says


@pytest.mark.slow
def test_a_429_delays_the_calls_of_all_and_takes_no_attempt(settings: Settings) -> None:
    async def story() -> None:
        turns = [error(429, retry_after=2), turn(text("one")), turn(text("two"))]
        free = ProviderBudget()
        async with talking(settings, turns, provider_budget=free) as (client, fake):
            first = await client.start("orders", "Is it late?", id="r1")
            while not fake.count:
                await asyncio.sleep(0.01)
            second = await client.start("orders", "Is it late?", id="r2")
            assert {await first.result(), await second.result()} == {"one", "two"}
            refused, *others = [each.received_at for each in fake.requests]
            assert len(others) == 2
            assert all(at - refused >= 2.0 for at in others)
            for run in (first, second):
                kinds = [event.kind async for event in run.history()]
                assert "step.failed" not in kinds and "step.waiting" not in kinds

    asyncio.run(story())


@pytest.mark.slow
def test_a_provider_that_limits_for_long_is_waited_for_again_and_again_and_nothing_is_used_up(
    settings: Settings,
) -> None:
    async def story() -> None:
        turns = [*[error(429, retry_after=1)] * 3, turn(text("done"))]
        patience = RetryPolicy(retries=1, wait_s_max=0.1)
        options = {"provider_budget": ProviderBudget(), "model_retry": patience}
        async with talking(settings, turns, **options) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            assert await run.result() == "done"
            assert fake.count == 4
            kinds = [event.kind async for event in run.history()]
            assert kinds.count("step.waiting") >= 3 and "step.failed" not in kinds

    asyncio.run(story())


def test_what_an_answer_says_is_left_holds_the_next_call_back(settings: Settings) -> None:
    limited = {
        "anthropic-ratelimit-requests-limit": "10",
        "anthropic-ratelimit-requests-remaining": "0",
        "anthropic-ratelimit-requests-reset": written(round(time.time() * 1000) + 3_600_000),
    }
    turns = [turn(text("one"), headers=limited)]

    async def story() -> None:
        free = ProviderBudget()
        async with talking(settings, turns, provider_budget=free) as (client, fake):
            first = await client.start("orders", "Is it late?", id="r1")
            assert await first.result() == "one"
            second = await client.start("orders", "Is it late?", id="r2")
            view = await until_in_line(second, "answer")
            assert "takes no more requests of anthropic/claude-test now" in view.notes[0].text
            assert 300 < view.step("answer").due_ms / 1000 - time.time() <= 361
            assert fake.count == 1
            await second.cancel()
            with pytest.raises(RunCancelled):
                await second.result(timeout_s=10)

    asyncio.run(story())


def test_a_call_that_waits_in_its_worker_is_cancelled_at_once(settings: Settings) -> None:
    async def story() -> None:
        patience = RetryPolicy(wait_s_max=600)
        options: dict[str, Any] = {"provider_budget": ProviderBudget(), "model_retry": patience}
        async with talking(settings, [error(429, retry_after=50)], **options) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            while not fake.count:
                await asyncio.sleep(0.01)
            await run.cancel("enough")
            with pytest.raises(RunCancelled):
                await run.result(timeout_s=10)
            async with asyncio.timeout(10):
                while await given_out(settings):
                    await asyncio.sleep(0.02)

    asyncio.run(story())


# ------------------------------------------------------------------ without one


def test_an_agent_without_a_budget_has_no_gate_to_pass() -> None:
    with FakeAnthropic([turn(text("done"))]) as fake:
        model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="none")
        free = Agent("free", model=model).equipment()
        bound = Agent("bound", model=model, provider_budget=ProviderBudget()).equipment()
        assert free.passage(model, lambda: 0) is None
        assert bound.passage(model, lambda: 0) is not None
