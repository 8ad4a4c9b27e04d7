"""Faults of what a durable agent depends on: the model's provider, and the server's bounds.

A real server, an engine and a worker in this process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.agent.durable.test_limits import result_of
from tests.agent.durable.test_stream import talking

from treadle.sdk import RunFailed
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker.agent import tool
from treadle.worker.agent.models.retrying import RetryPolicy
from treadle.worker.agent.testing import cut_after, error, error_after, text, tool_use, turn

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    "broken",
    [
        error(529),
        turn(text("I beg"), fault=cut_after("content_block_delta")),
        turn(text("I beg"), fault=error_after("content_block_delta")),
    ],
)
def test_a_step_without_a_retry_policy_survives_a_fault_of_the_provider(
    settings: Settings, broken: Any
) -> None:
    step = {"max_iterations": 3}
    result, fake = asyncio.run(result_of(settings, [broken, turn(text("done"))], step))
    assert result == "done"
    assert fake.count == 2


# ------------------------------------------------------------------ a provider that is busy


async def given_out(settings: Settings, type_: str = "order-agent") -> int:
    """Return how many tasks of the agent workers hold."""
    names = Subjects(settings.namespace)
    connection = await Connection.open(settings, name="test")
    try:
        name = f"{names.steps_stream}.{names.worker_consumer(type_)}"
        return int((await JetStream(connection).api(f"CONSUMER.INFO.{name}"))["num_ack_pending"])
    finally:
        await connection.close()


def test_a_long_wait_that_the_provider_asks_for_is_waited_on_the_server(
    settings: Settings,
) -> None:
    async def story() -> None:
        async with talking(settings, [error(429, retry_after=171)]) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            while (view := await run.get()).status != "parked":
                await asyncio.sleep(0.02)
            step = view.step("answer")
            assert 165_000 < step.due_ms - time.time() * 1000 <= 171_000
            (note,) = view.notes
            assert "the model's provider is busy" in note.text
            assert "it goes on by itself at" in note.text
            assert "treadle run resume r1" in note.command
            while await given_out(settings):
                await asyncio.sleep(0.02)
            assert (fake.count, step.iterations) == (1, 0), "a wait is no iteration"

    asyncio.run(story())


def test_a_run_goes_on_by_itself_when_the_time_the_provider_asked_for_is_over(
    settings: Settings,
) -> None:
    async def story() -> None:
        turns = [error(429, retry_after=1), turn(text("done"))]
        patience = RetryPolicy(park_after_s=0.2)
        async with talking(settings, turns, model_retry=patience) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            assert await run.result() == "done"
            first, second = fake.requests
            assert second.received_at - first.received_at >= 1.0
            kinds = [event.kind async for event in run.history()]
            assert kinds.count("step.waiting") == 1 and "step.failed" not in kinds

    asyncio.run(story())


# ------------------------------------------------------------------ a record that is too large


class TightServer(NatsServer):
    """A server that takes small messages only."""

    def _config(self) -> str:
        return f"{super()._config()}max_payload: 128KB\n"


@pytest.fixture
def tight_server(tmp_path: Path) -> Iterator[NatsServer]:
    running = TightServer.start(tmp_path / "nats")
    yield running
    running.stop()


def test_a_result_larger_than_the_server_takes_fails_once_and_is_named(
    tight_server: NatsServer, settings: Settings
) -> None:
    ran: list[int] = []

    @tool(effect="once", max_output=200_000)
    async def fetch(pages: int) -> str:
        """Fetch pages."""
        ran.append(pages)
        return "page " * 30_000

    script = [turn(tool_use("fetch", {"pages": 3}, id="c7"))]

    async def story() -> None:
        place = replace(settings, url=tight_server.url)
        async with talking(place, script, tools=[fetch]) as (client, fake):
            run = await client.start("orders", "Is it late?", id="r1")
            with pytest.raises(RunFailed) as failed:
                await run.result()
            failure = failed.value.failure
            assert (failure.type, failure.retryable) == ("InvalidPayload", False)
            assert "the result of fetch (call 'c7') in step 'answer'" in failure.message
            assert "max_payload" in failure.message and "max_output" in failure.message
            assert (ran, fake.count) == ([3], 1)
            kinds = [event.kind async for event in run.history()]
            assert kinds.count("step.failed") == 1

    asyncio.run(story())
