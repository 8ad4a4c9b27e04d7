"""A worker process whose agent pays once: killed at a failpoint, and followed by another.

Settings come from TREADLE_*, the model's address from ANTHROPIC_BASE_URL; the ledger's path,
whether payments can be reconciled and how much a look-up returns from PAY_*.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from treadle.sdk import failpoints
from treadle.sdk.settings import Settings
from treadle.worker import Worker, serve
from treadle.worker.agent import Agent, Budget, ProviderBudget, ToolContext, tool
from treadle.worker.agent.models.anthropic import AnthropicModel

LEDGER = Path(os.environ.get("PAY_LEDGER", ""))


class Receipt(BaseModel):
    """What the agent comes to."""

    paid: int


def payments() -> list[dict[str, Any]]:
    """Return what was paid, in order."""
    lines = LEDGER.read_text().splitlines() if LEDGER.exists() else []
    return [json.loads(line) for line in lines]


@tool(idempotent=True)
async def look_up(order: str) -> dict[str, Any]:
    """Look an order up."""
    failpoints.reach("test.look-up")
    lines = int(os.environ.get("PAY_LINES", "0"))
    more = {"lines": [f"line {n}" for n in range(lines)]} if lines else {}
    return {"order": order, "state": "late", **more}


def _find(ctx: ToolContext[None], args: dict[str, Any]) -> str | None:
    known = [paid for paid in payments() if paid["key"] == ctx.idempotency_key]
    return f"paid {known[0]['cents']}" if known else None


@tool(effect="once", sequential=False, reconcile=_find if os.environ.get("PAY_FINDS") else None)
async def pay(ctx: ToolContext[None], cents: int) -> str:
    """Pay an amount."""
    failpoints.reach("test.pay-before")
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"key": ctx.idempotency_key, "cents": cents}) + "\n")
    failpoints.reach("test.pay-after")
    return f"paid {cents}"


def _provider_budget() -> ProviderBudget | None:
    requests = os.environ.get("PAY_REQUESTS_PER_MINUTE")
    tokens = os.environ.get("PAY_TOKENS_PER_MINUTE")
    if not requests and not tokens:
        return None
    return ProviderBudget(
        requests_per_minute=int(requests or 0), tokens_per_minute=int(tokens or 0)
    )


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    model = AnthropicModel("claude-test", api_key="none")
    agent = Agent(
        "payer",
        model=model,
        instructions="Pay what is due.",
        tools=[look_up, pay],
        output_type=Receipt,
        budget=Budget(max_steps=8),
        provider_budget=_provider_budget(),
    )
    worker = Worker(os.environ["PAY_NAME"], concurrency=int(os.environ.get("PAY_SLOTS", "64")))
    worker.agent("pay-agent", agent)
    serve(worker, Settings.from_env())


if __name__ == "__main__":
    main()
