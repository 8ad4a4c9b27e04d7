"""A worker process whose agent needs approvals: killed while it waits, and followed by another.

Settings come from TREADLE_*, the model's address from ANTHROPIC_BASE_URL, the ledger's path and
the times of people from CASHIER_*.
"""

from __future__ import annotations

import json
import logging
import os
from datetime import timedelta
from pathlib import Path
from typing import Any

from treadle.sdk.settings import Settings
from treadle.worker import Worker, serve
from treadle.worker.agent import Agent, Deny, Escalation, Policy, ToolContext, tool
from treadle.worker.agent.models.anthropic import AnthropicModel

LEDGER = Path(os.environ.get("CASHIER_LEDGER", ""))


@tool(requires_approval=True, effect="once")
async def pay(ctx: ToolContext[None], to: str, cents: int) -> str:
    """Pay somebody."""
    with LEDGER.open("a") as ledger:
        ledger.write(json.dumps({"key": ctx.idempotency_key, "to": to, "cents": cents}) + "\n")
    return f"paid {cents} to {to}"


def not_to_eve(call: Any, _: Any) -> Deny | None:
    return Deny("Nothing is paid to eve.") if call.input.get("to") == "eve" else None


def main() -> None:
    logging.basicConfig(level=logging.INFO)
    after_s = float(os.environ.get("CASHIER_ESCALATES_S", "0"))
    agent = Agent(
        "cashier",
        model=AnthropicModel("claude-test", api_key="none"),
        tools=[pay],
        policy=Policy(rule=not_to_eve),
        approval_timeout=timedelta(seconds=float(os.environ.get("CASHIER_WAITS_S", "0"))),
        approval_escalation=(
            [Escalation(after=timedelta(seconds=after_s), to="finance-lead")] if after_s else []
        ),
    )
    worker = Worker(os.environ["CASHIER_NAME"])
    worker.agent("cashier", agent)
    serve(worker, Settings.from_env())


if __name__ == "__main__":
    main()
