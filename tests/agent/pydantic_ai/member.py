"""A worker whose agent of pydantic-ai looks an order up and pays once, for the nursery to start.

Settings come from TREADLE_*, the model's address from ANTHROPIC_BASE_URL, the ledger's path from
CLERK_LEDGER. Every execution of a tool is a line of the ledger.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path

from pydantic import BaseModel
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.providers.anthropic import AnthropicProvider

from treadle.sdk import failpoints
from treadle.sdk.settings import Settings
from treadle.worker import Worker, serve
from treadle.worker.agent import pydantic_ai as adapter


class Receipt(BaseModel):
    """What the agent comes to."""

    paid: int


def note(line: str) -> None:
    with Path(os.environ["CLERK_LEDGER"]).open("a") as ledger:
        ledger.write(f"{line}\n")


def clerk() -> Agent[None, Receipt]:
    """Return the agent."""
    provider = AnthropicProvider(api_key="none", base_url=os.environ["ANTHROPIC_BASE_URL"])
    agent = Agent(
        AnthropicModel("claude-test", provider=provider),
        name="clerk",
        output_type=Receipt,
        capabilities=[adapter.TreadleDurability[None]()],
    )

    @agent.tool_plain(metadata=adapter.IDEMPOTENT)
    async def look_up(order: str) -> str:
        """Look an order up."""
        note(f"look_up {order}")
        return f"{order} is late"

    @agent.tool_plain
    def pay(cents: int) -> str:
        """Pay an amount."""
        failpoints.reach("test.pay-before")
        note(f"pay {cents}")
        failpoints.reach("test.pay-after")
        return f"paid {cents}"

    assert callable(look_up)
    assert callable(pay)
    return agent


def main() -> None:
    """Be a worker."""
    logging.basicConfig(level=logging.INFO)
    worker = Worker(os.environ["CLERK_NAME"])
    worker.handler("clerk-agent")(adapter.serve(clerk()))
    serve(worker, Settings.from_env())


if __name__ == "__main__":
    main()
