"""The agent runtime: a model, its tools and the rules that bound them, as an agent loop.

    from treadle.worker.agent import Agent, Budget, tool

Needs the extra ``treadle[agent]``.
"""

from treadle.sdk.asks import Reply
from treadle.worker.agent import extras

# ruff: noqa: E402 — importing any module of the package begins here, and this has to be first.
extras.require(__name__, "agent", "docstring_parser", "pydantic", "typing_extensions")

from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.compaction import CompactionPolicy
from treadle.worker.agent.core.provider_budget import ProviderBudget
from treadle.worker.agent.core.state import State
from treadle.worker.agent.escalation import Escalation
from treadle.worker.agent.hooks import Block, Hooks, NextTurn
from treadle.worker.agent.mcp.errors import McpUnavailable
from treadle.worker.agent.mcp.server import McpServer
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.ports import MemoryInbox
from treadle.worker.agent.result import AgentResult, AgentStopped
from treadle.worker.agent.tools.bash import bash_tool
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.agent.tools.errors import ToolRejected, TransientToolError
from treadle.worker.agent.tools.policy import Ask, Deny, Policy

__all__ = [
    "Agent",
    "AgentResult",
    "AgentStopped",
    "Ask",
    "Block",
    "Budget",
    "CompactionPolicy",
    "Deny",
    "Escalation",
    "Hooks",
    "McpServer",
    "McpUnavailable",
    "MemoryInbox",
    "NextTurn",
    "Policy",
    "Price",
    "PriceTable",
    "ProviderBudget",
    "Reply",
    "State",
    "ToolContext",
    "ToolRejected",
    "TransientToolError",
    "bash_tool",
    "tool",
]
