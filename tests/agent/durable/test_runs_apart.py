"""What an agent has stored belongs to a run, not to what it was asked.

A real server, an engine and one worker in this process, so both runs pass through one memory.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from treadle.sdk import Workflow
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, ToolContext, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.stored import read_journal
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

GOAL = "Say which run this is."


@tool
async def which(ctx: ToolContext[Any]) -> str:
    """Say which run this is."""
    return f"run {ctx.run}"


def play(request: RecordedRequest) -> Turn:
    """Ask twice, each time under the same ids, then say what was heard."""
    heard = [
        block["content"]
        for message in request.messages
        for block in message["content"]
        if block["type"] == "tool_result"
    ]
    return turn(text(", ".join(heard))) if len(heard) == 2 else turn(tool_use("which", {}, "id"))


def test_two_runs_with_one_goal_and_the_same_call_ids_share_nothing(settings: Settings) -> None:
    async def story() -> None:
        workflow, worker = Workflow("asking"), Worker("w")
        workflow.agent_loop("loop", "asker", max_iterations=9)
        with FakeAnthropic(play) as fake:
            model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="none")
            worker.agent("asker", Agent("asker", model=model, tools=[which]))
            place = {"url": settings.url, "namespace": settings.namespace}
            async with local(worker, workflows=[workflow], **place) as client:
                runs = [await client.start("asking", GOAL, id=id) for id in ("one", "two")]
                async with asyncio.timeout(30):
                    results = [await run.result() for run in runs]
            await model.close()
            assert fake.count == 6
        assert results == ["run one, run one", "run two, run two"]
        for mine, other in (("one", "two"), ("two", "one")):
            stored = b"".join(
                msgspec.json.encode(record.entries)
                for record in await read_journal(mine, "loop", settings)
            )
            assert f"run {mine}".encode() in stored and f"run {other}".encode() not in stored
            assert f'"{mine}:loop'.encode() in stored, "the keys of calls name the run"

    asyncio.run(story())
