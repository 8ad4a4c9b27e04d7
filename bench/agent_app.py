"""The agent under measurement, served by ``treadle worker bench/agent_app.py``; see ``growth.py``.

Every turn reads one document, whose length makes the conversation grow by the same amount.
"""

from __future__ import annotations

from treadle.sdk import Workflow
from treadle.worker import Worker
from treadle.worker.agent import Agent, Budget, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.tools.tool import AnyTool

ITERATIONS_MAX = 10_000
DOCUMENT_CHARS = 2_530
"""With the call around it some 667 tokens as the fake counts them: 300 turns fill 200,000."""
READERS = 3
"""Tools that are called in turn: one alone would look as if the agent went in circles."""
ROOMY, TIGHT = 1_000_000, 100_000
"""Windows in tokens: one that never has to be compacted here, and one that has."""

grown = Workflow("bench-agent")
grown.agent_loop("agent", "bench-agent", max_iterations=ITERATIONS_MAX)
compacted = Workflow("bench-agent-compacting")
compacted.agent_loop("agent", "bench-agent-compacting", max_iterations=ITERATIONS_MAX)


def document(number: int) -> str:
    """Return a document of the same length for each number."""
    return (f"document {number:06}, " * (DOCUMENT_CHARS // 16 + 1))[:DOCUMENT_CHARS]


def _reader(index: int) -> AnyTool:
    @tool(name=f"read_{index}", idempotent=True)
    async def read(number: int) -> str:
        """Read a document."""
        return document(number)

    return read


def _agent(window: int) -> Agent[str]:
    return Agent(
        "reader",
        model=AnthropicModel("claude-bench", context_window=window),
        instructions="Read every document.",
        tools=[_reader(index) for index in range(READERS)],
        budget=Budget(max_steps=ITERATIONS_MAX),
        ask_human=True,
    )


worker = Worker()
worker.agent("bench-agent", _agent(ROOMY))
worker.agent("bench-agent-compacting", _agent(TIGHT))
