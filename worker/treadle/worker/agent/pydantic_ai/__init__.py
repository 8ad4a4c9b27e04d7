"""Agents of pydantic-ai, run durably as an agent loop.

    agent = pydantic_ai.Agent("anthropic:...", name="clerk", capabilities=[TreadleDurability()])
    worker.handler("clerk")(serve(agent))

Needs the extra ``treadle[pydantic-ai]``. Built on the library's public extension for durable
engines, ``pydantic_ai.durable_exec``: ``test_contract.py`` states what of it.
"""

from treadle.worker.agent import extras

# ruff: noqa: E402 — what is imported below needs the extra.
extras.require(__name__, "pydantic-ai", "pydantic_ai")

from treadle.worker.agent.pydantic_ai.capability import IDEMPOTENT, TreadleDurability
from treadle.worker.agent.pydantic_ai.handler import serve
from treadle.worker.agent.pydantic_ai.scope import UnfinishedTool, durable

__all__ = ["IDEMPOTENT", "TreadleDurability", "UnfinishedTool", "durable", "serve"]
