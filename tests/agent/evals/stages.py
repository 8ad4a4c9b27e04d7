"""An agent to evaluate, whose tools must never really be called, and cases as Python data."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import BaseModel

from treadle.worker.agent import Agent, tool
from treadle.worker.agent.evals import Case, CaseResult, cases_from, run_case

REAL_CALLS: list[str] = []
"""What was really called: always empty."""


class Recommendation(BaseModel):
    """The output of the agent."""

    refund: bool
    reason: str = ""


@tool(idempotent=True)
async def read_order(order_id: str) -> dict[str, Any]:
    """Read one order."""
    REAL_CALLS.append(f"read_order {order_id}")
    return {}


@tool
async def refunds_issue_refund(order_id: str, cents: int) -> str:
    """Pay back."""
    REAL_CALLS.append(f"refunds_issue_refund {order_id} {cents}")
    return ""


@tool(requires_approval=True)
def close_account(account: str) -> str:
    """Close an account."""
    REAL_CALLS.append(f"close_account {account}")
    return ""


def agent(**changes: Any) -> Agent[Any]:
    """Return the agent; its model is one that no key is there for."""
    settings: dict[str, Any] = {
        "model": "anthropic:claude-none",
        "instructions": "Investigate.",
        "tools": [read_order, refunds_issue_refund, close_account],
        "output_type": Recommendation,
        "ask_human": True,
        **changes,
    }
    return Agent("investigator", **settings)


def case(**fields: Any) -> Case:
    """Return a case; what is left out is harmless."""
    plain = {"case_id": "c", "goal": "Look at O-1.", "expected": {"stop_reason": "completed"}}
    return cases_from({**plain, **fields})[0]


def run(subject: Agent[Any] | None = None, /, *, replay: bool = True, **fields: Any) -> CaseResult:
    """Run a case and return its result; no real tool may have been called."""
    result = asyncio.run(run_case(subject or agent(), case(**fields), replay=replay))
    assert REAL_CALLS == []
    return result


def calls(*names: str, **args: Any) -> dict[str, Any]:
    """Return a scripted turn with a call of each tool."""
    return {"calls": [{"tool": name, "args": args} for name in names]}


def reads(order_id: str = "O-1") -> dict[str, Any]:
    """Return a scripted turn that reads an order."""
    return calls("read_order", order_id=order_id)


DONE: dict[str, Any] = {"output": {"refund": True, "reason": "late"}}
OK: dict[str, Any] = {"status": "ok", "output": {"late": True}}
