"""What an iteration of an agent stores, while its conversation grows.

A real server; the sizes are those of the stored messages. ``bench/growth.py`` does it at length.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.run.test_telling import read

from treadle.sdk import Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, Budget, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.stored import read_journal
from treadle.worker.agent.testing import FakeAnthropic, text, tool_use, turn

TURNS = 42
GROWTH_MAX = 1.05
"""Digits of numbers; a conversation that was stored again would give more than 3."""


@tool(idempotent=True)
async def fetch(n: int) -> str:
    """Fetch the n-th page."""
    return f"page {n:04} " * 200


def fetching(request: Any) -> Any:
    """Fetch and read in turn, then be done."""
    if request.index >= TURNS:
        return turn(text("done"))
    name = ("fetch", "read")[request.index % 2]
    return turn(tool_use(name, {"n": request.index}))


@pytest.mark.slow
def test_bytes_stored_per_iteration_stay_flat_while_the_conversation_grows(
    settings: Settings,
) -> None:
    async def story() -> tuple[list[int], list[int], int]:
        workflow, worker = Workflow("growing"), Worker("w")
        workflow.agent_loop("loop", "grower", max_iterations=TURNS + 8)
        with FakeAnthropic(fetching) as fake:
            model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="none")
            budget = Budget(max_steps=TURNS * 10)
            worker.agent("grower", Agent("g", model=model, tools=[fetch, read], budget=budget))
            place = {"url": settings.url, "namespace": settings.namespace}
            async with local(worker, workflows=[workflow], **place) as client:
                run = await client.start("growing", "Fetch all.", id="grow")
                assert await asyncio.wait_for(run.result(), 60) == "done"
            await model.close()
            sent = [len(request.raw) for request in fake.requests]
        records = [0] * (TURNS + 1)
        for record in await read_journal("grow", "loop", settings):
            records[record.iteration] += record.size_bytes
        connection = await Connection.open(settings, name="test")
        js, names = JetStream(connection), Subjects(settings.namespace)
        stored = js.read(names.events_stream, names.events_of_run("grow"))
        events = [len(event.data) async for event in stored]
        await connection.close()
        return records, events[1:], sent[-1] // sent[3]

    records, events, grown = asyncio.run(story())
    assert grown > 5, "the conversation has grown"
    assert len(events) == TURNS + 1
    for sizes in (records, events):
        early, late = sum(sizes[6:16]), sum(sizes[TURNS - 10 : TURNS])
        assert late <= early * GROWTH_MAX, (early, late)
