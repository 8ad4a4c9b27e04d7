"""Bounds of a durable agent: its own and those of its step, as the result and the failure tell.

A real server, an engine and a worker in this process; the fake model never comes to an end.
"""

from __future__ import annotations

import asyncio
import datetime
from typing import Any

import pytest
from tests.agent.run.test_telling import look, looking, read

from treadle.sdk import Workflow
from treadle.sdk.errors import RunFailed
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, Budget
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, stall_after, text, turn

WITHIN_S = 30.0


async def result_of(
    settings: Settings, script: Any, step: dict[str, Any], **agent: Any
) -> tuple[Any, FakeAnthropic]:
    """Run one agent as the only step of a workflow; return its result, or raise what failed."""
    workflow, worker = Workflow("bounded"), Worker("w")
    workflow.agent_loop("loop", "looker", **step)
    with FakeAnthropic(script) as fake:
        model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="none")
        worker.agent("looker", Agent("looker", model=model, tools=[look, read], **agent))
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(worker, workflows=[workflow], **place) as client:
            run = await client.start("bounded", "Look.")
            try:
                return await asyncio.wait_for(run.result(), WITHIN_S), fake
            finally:
                await model.close()


@pytest.mark.parametrize("bound", [{"max_iterations": 3}, {"max_tool_calls": 3}])
def test_a_bound_of_the_step_that_wraps_up_asks_the_agent_for_its_last_answer(
    settings: Settings, bound: dict[str, Any]
) -> None:
    step = {"max_iterations": 30, "on_limit": "wrap_up"} | bound
    result, fake = asyncio.run(result_of(settings, looking, step))
    assert result == "so far"
    assert fake.count == 4
    assert "This is your last answer" in fake.requests[-1].last_text


def test_a_step_that_fails_at_the_agents_bound_says_which_its_value_and_what_to_do(
    settings: Settings,
) -> None:
    budget = Budget(max_tool_calls=2)
    step = {"max_iterations": 30}
    with pytest.raises(RunFailed) as failed:
        asyncio.run(result_of(settings, looking, step, budget=budget, on_limit="fail"))
    assert failed.value.failure.type == "max_tool_calls"
    assert "max_tool_calls is 2, and 2 tool calls are used. Raise" in str(failed.value)


@pytest.mark.slow
def test_a_durable_agent_whose_model_hangs_is_ended_at_the_hard_limit_of_its_budget(
    settings: Settings,
) -> None:
    budget = Budget(max_duration=datetime.timedelta(seconds=2))
    stalled = turn(text("a long answer"), fault=stall_after("content_block_delta"))
    with pytest.raises(RunFailed) as failed:
        asyncio.run(result_of(settings, [stalled], {"max_iterations": 30}, budget=budget))
    assert failed.value.failure.type == "timeout"
    assert failed.value.failure.place == "", "no line of the runtime is shown as the user's"
    assert "max_duration is 0:00:02" in str(failed.value)
