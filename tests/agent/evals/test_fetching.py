"""A durable run's journal becomes a cassette, and that an offline test.

Method: a real server, an engine and a worker in this process; a scripted model on both sides.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from treadle.engine import Engine
from treadle.engine.topology import ensure_topology
from treadle.sdk import Client, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.worker import Worker
from treadle.worker.agent import Agent, Policy, tool
from treadle.worker.agent.evals import ScriptedModel, cases_from, diff, fetch, replay
from treadle.worker.agent.models.anthropic import AnthropicModel

SCRIPT: list[Any] = [
    {"calls": [{"tool": "pay", "args": {"cents": 5}}]},
    {"calls": [{"tool": "final_output", "args": {"paid": 5}}]},
]


def payer(model: Any, paid: list[int], **changes: Any) -> Agent[Any]:
    @tool
    async def pay(cents: int) -> str:
        """Pay."""
        paid.append(cents)
        return f"paid {cents}"

    return Agent("payer", model=model, tools=[pay], output_type=dict[str, Any], **changes)


def scripted() -> ScriptedModel:
    plain = {"case_id": "c", "goal": "g", "model": SCRIPT, "expected": {"max_tool_calls": 0}}
    turns = cases_from(plain)[0].model or ()
    return ScriptedModel(turns, AnthropicModel("claude-none", api_key="none"))


def test_a_production_run_replays_offline_and_shows_what_a_change_would_do(
    settings: Settings,
) -> None:
    paid: list[int] = []

    async def story() -> None:
        connection = await Connection.open(settings, name="test")
        await ensure_topology(JetStream(connection), settings)
        await connection.close()
        workflow = Workflow("payments")
        workflow.agent_loop("pay", "payer", max_iterations=9)
        engine, worker = Engine(settings), Worker("w")
        worker.agent("payer", payer(scripted(), paid))
        tasks = [asyncio.create_task(engine.run()), asyncio.create_task(worker.run(settings))]
        try:
            async with Client.connect(settings=settings) as client:
                run = await client.start(workflow.build(), "Pay what is due.", id="r-1")
                assert await asyncio.wait_for(run.result(), 20) == {"paid": 5}
        finally:
            worker.stop()
            engine.stop()
            await asyncio.gather(*tasks)
        cassette = await fetch("r-1", "pay", settings)
        assert paid == [5]
        same = payer("anthropic:claude-none", paid)
        assert diff(cassette, await replay(same, cassette)) == ()
        strict = payer("anthropic:claude-none", paid, policy=Policy(forbidden={"pay"}))
        found = [str(each) for each in diff(cassette, await replay(strict, cassette))]
        assert found == [
            "turn 1, call 1 (pay): decision execute -> denied",
            "turn 1, call 1 (pay): status ok -> refused",
        ]
        assert paid == [5], "a replay pays nothing"
        with pytest.raises(UserError, match="step 'other' of run 'r-1' has no journal"):
            await fetch("r-1", "other", settings)

    asyncio.run(story())
