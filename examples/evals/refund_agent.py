r"""An agent under evaluation: is the evidence for a refund sufficient?

treadle eval examples/evals/trajectories.yaml examples/evals/lookup_failure.json \
    --agent examples/evals/refund_agent.py:agent
treadle eval --cassette examples/evals/completed.cassette.json \
    --agent examples/evals/refund_agent.py:agent

Both run offline: the tools are mocked, the model is scripted or recorded.
"""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from treadle.worker.agent import Agent, Budget, Policy, tool


class Recommendation(BaseModel):
    """What the investigation comes to."""

    refund: bool
    reason: str


@tool(idempotent=True)
async def shipping_read_delivery_status(order_id: str) -> dict[str, Any]:
    """Read when an order was promised and delivered.

    Args:
        order_id: The order's number, such as "O-104".
    """
    raise NotImplementedError(f"the carrier is asked about {order_id} here")


@tool(idempotent=True)
async def refunds_search_policy(question: str) -> str:
    """Search the refund policy.

    Args:
        question: What is to be found out.
    """
    raise NotImplementedError(f"the policy is searched for {question!r} here")


@tool
async def refunds_issue_refund(order_id: str, cents: int) -> str:
    """Pay an order back.

    Args:
        order_id: The order's number.
        cents: How much.
    """
    raise NotImplementedError(f"{cents} cents of {order_id} are paid back here")


def delivery_was_read(result: Recommendation, state: Any) -> str | None:
    """Accept no recommendation without a look at the delivery."""
    del result
    if state.executed.get("shipping_read_delivery_status"):
        return None
    return "the delivery status was not read. Read it first."


agent = Agent(
    "refund-investigator",
    model="anthropic:claude-sonnet-5-5",
    instructions="Decide whether the evidence for a refund is sufficient. You never pay yourself.",
    tools=[shipping_read_delivery_status, refunds_search_policy, refunds_issue_refund],
    output_type=Recommendation,
    evidence=[delivery_was_read],
    policy=Policy(forbidden={"refunds_issue_refund"}),
    budget=Budget(max_steps=4, max_tool_calls=5),
    ask_human=True,
)
