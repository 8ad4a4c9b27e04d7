"""A worker process of a workflow with an agent: fetch, research in five turns with tools, report.

Settings come from TREADLE_*, the model's address from ANTHROPIC_BASE_URL; RESEARCH_PACE_S is how
long each tool takes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from typing import Any

from treadle.sdk import Workflow, failpoints
from treadle.sdk.settings import Settings
from treadle.worker import TaskContext, Worker, serve
from treadle.worker.agent import Agent, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import RecordedRequest, Turn, text, tool_use, turn
from treadle.worker.agent.testing.script import Responder

TURNS = 5
PACE_S = float(os.environ.get("RESEARCH_PACE_S", "0"))


def research() -> Any:
    """Return the workflow."""
    workflow = Workflow[str]("research_report")
    workflow.task("fetch", "fetch")
    workflow.agent_loop("research", "researcher", after=["fetch"], max_iterations=20)
    workflow.task("report", "report", after=["research"])
    return workflow.build()


def playing(pace_s: float = 0) -> Responder:
    """Return the model's script: two calls of tools in each turn, then an answer."""

    def play(request: RecordedRequest) -> Turn:
        time.sleep(2 * pace_s)
        n = sum(message["role"] == "assistant" for message in request.messages)
        if n == TURNS - 1:
            return turn(text("Looms wove patterns from punched cards."))
        return turn(
            text(f"Turn {n}."),
            tool_use("search_docs", {"query": f"looms {n}"}, id=f"search{n}"),
            tool_use("read_page", {"page": n}, id=f"read{n}"),
        )

    return play


@tool(idempotent=True)
async def search_docs(query: str) -> list[str]:
    """Search the documents."""
    await asyncio.sleep(PACE_S)
    return [f"about {query}"]


@tool(idempotent=True)
async def read_page(page: int) -> str:
    """Read a page."""
    await asyncio.sleep(PACE_S)
    failpoints.reach("test.read-page")
    return f"page {page}"


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    model = AnthropicModel("claude-test", api_key="none")
    worker = Worker(os.environ["PAY_NAME"])

    @worker.handler("fetch")
    async def fetch(ctx: TaskContext[str]) -> str:
        await asyncio.sleep(PACE_S)
        return ctx.input

    @worker.handler("report")
    async def report(ctx: TaskContext[str]) -> str:
        await asyncio.sleep(PACE_S)
        return ctx.input.upper()

    tools = [search_docs, read_page]
    worker.agent(
        "researcher", Agent("researcher", model=model, instructions="Research.", tools=tools)
    )
    serve(worker, Settings.from_env())


if __name__ == "__main__":
    main()
