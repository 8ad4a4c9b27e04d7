"""A worker process whose agent hands two tasks on: killed at a failpoint, and followed by another.

Settings come from TREADLE_*, the model's address from ANTHROPIC_BASE_URL, the ledger of payments
from PAY_LEDGER.
"""

from __future__ import annotations

import json
import logging
import os
from pathlib import Path
from typing import Any

from treadle.sdk import failpoints
from treadle.sdk.settings import Settings
from treadle.worker import Worker, serve
from treadle.worker.agent import Agent, Budget, ToolContext, tool
from treadle.worker.agent.models.anthropic import AnthropicModel


def payments(ledger: Path) -> list[dict[str, Any]]:
    """Return what was paid, in order."""
    lines = ledger.read_text().splitlines() if ledger.exists() else []
    return [json.loads(line) for line in lines]


def _find(ctx: ToolContext[None], args: dict[str, Any]) -> str | None:
    known = payments(Path(os.environ["PAY_LEDGER"]))
    return "paid" if ctx.idempotency_key in {paid["key"] for paid in known} else None


@tool(effect="once", sequential=False, reconcile=_find)
async def pay(ctx: ToolContext[None], cents: int) -> str:
    """Pay an amount."""
    with Path(os.environ["PAY_LEDGER"]).open("a") as ledger:
        ledger.write(json.dumps({"key": ctx.idempotency_key, "cents": cents}) + "\n")
    failpoints.reach("test.paid")
    return "paid"


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    model = AnthropicModel("claude-test", api_key="none")
    clerk = Agent(
        "clerk",
        model=model,
        instructions="clerk pays.",
        description="Pays one amount.",
        ask_human=True,
        tools=[pay],
    )
    lead = Agent(
        "lead",
        model=model,
        instructions="lead hands out.",
        subagents=[clerk],
        budget=Budget(max_steps=int(os.environ["PAY_STEPS"])),
        on_limit="wrap_up" if os.environ.get("PAY_WRAPS_UP") else "fail",
    )
    worker = Worker(os.environ["PAY_NAME"])
    worker.agent("lead", lead)
    serve(worker, Settings.from_env())


if __name__ == "__main__":
    main()
