"""Agents of pydantic-ai, run durably as an agent loop.

    agent = pydantic_ai.Agent("anthropic:...", name="clerk", capabilities=[TreadleDurability()])
    worker.handler("clerk")(serve(agent))

Needs the extra ``treadle[pydantic-ai]``. Built on the library's public extension for durable
engines, ``pydantic_ai.durable_exec``: ``test_contract.py`` states what of it.
"""

from treadle.worker.agent.pydantic_ai.capability import IDEMPOTENT, TreadleDurability
from treadle.worker.agent.pydantic_ai.handler import serve
from treadle.worker.agent.pydantic_ai.scope import UnfinishedTool, durable

__all__ = ["IDEMPOTENT", "TreadleDurability", "UnfinishedTool", "durable", "serve"]
