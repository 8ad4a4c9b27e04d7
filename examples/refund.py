"""An agent investigates whether a refund is justified: it may recommend one, and never pay it.

    investigate (agent loop: one turn of the model is one iteration) -> route (plain code)

Only the uncertain part is left to a model, and software decides what it may do, what counts as
evidence and when it is over. Paying, changing and approving are other people's steps.

Try it, with a model of your choice::

    export ANTHROPIC_API_KEY=... TREADLE_REFUND_MODEL=anthropic:NAME
    treadle dev examples/refund.py
    treadle run start refund-investigation --id refund-1 --watch \\
        --input '{"order_id": "O-104", "complaint": "It came three weeks late."}'

If it asks something, the run waits: ``treadle approvals list`` shows the question, and
``treadle approvals answer ID --text "the lamp was whole"`` lets it go on.

``TREADLE_REFUND_MODEL=openai:NAME@URL`` asks any server that speaks chat completions.
"""

import os
from datetime import timedelta
from typing import Any, Literal

from pydantic import BaseModel, Field

from treadle.sdk import Retry, Workflow
from treadle.sdk.errors import UserError
from treadle.worker import TaskContext, Worker
from treadle.worker.agent import Agent, Budget, Policy, ToolRejected, tool
from treadle.worker.agent.core.state import State

MODEL = "TREADLE_REFUND_MODEL"


class Request(BaseModel):
    """Input of the workflow: what a customer wants money back for."""

    order_id: str
    complaint: str


class Recommendation(BaseModel):
    """What the agent comes to. Somebody else decides."""

    order_id: str
    decision: Literal["refund", "no_refund", "evidence_missing"]
    amount_cents: int = Field(ge=0, description="What to pay back; 0 without a refund.")
    reasons: list[str] = Field(min_length=1, description="Each with the fact it rests on.")


# ------------------------------------------------------------------ what it may do

Records = dict[str, dict[str, Any]]
ORDERS: Records = {"O-104": {"item": "desk lamp", "total_cents": 4_900, "promised": "2026-03-02"}}
DELIVERIES: Records = {"O-104": {"state": "delivered", "on": "2026-03-23", "to": "M. Ruiz"}}
RULES = [
    "Late delivery: more than 14 days after the promised date, the whole price is paid back.",
    "Damage: a refund needs a photo of the damage, sent within 30 days.",
    "Change of mind: no refund after 30 days.",
]


@tool(idempotent=True)
async def read_order(order_id: str) -> dict[str, Any]:
    """Read one order: what was bought, the price, and the promised day of delivery.

    Args:
        order_id: The order's number, e.g. "O-104".
    """
    return _found(ORDERS, order_id, "order")


@tool(idempotent=True)
async def read_delivery_status(order_id: str) -> dict[str, Any]:
    """Read what the carrier says about the delivery of one order.

    Args:
        order_id: The order's number.
    """
    return _found(DELIVERIES, order_id, "delivery of order")


@tool(idempotent=True)
async def search_refund_policy(words: str) -> list[str]:
    """Return the rules about refunds that hold one of the words."""
    wanted = words.lower().split()
    return [rule for rule in RULES if any(word in rule.lower() for word in wanted)] or RULES


def _found(kept: Records, order_id: str, what: str) -> dict[str, Any]:
    if order_id not in kept:
        raise ToolRejected(f"There is no {what} {order_id!r}. Look at the number again.")
    return {"order_id": order_id, **kept[order_id]}


POLICY = Policy(
    allowed={"read_order", "read_delivery_status", "search_refund_policy"},
    # None of them is a tool here. Named, a proposal is refused for what it is, and an agent that
    # insists is stopped: ``policy_blocked``.
    forbidden={"issue_refund", "change_payment_method", "update_policy"},
)


# ------------------------------------------------------------------ when it is done


def was_read(result: Recommendation, state: State) -> str:
    """Accept a decision only if this run has read what it must rest on, for that order."""
    if result.decision == "evidence_missing":
        return ""
    read = successes(state)
    missing = [
        name
        for name in ("read_order", "read_delivery_status")
        if (name, result.order_id) not in read
    ]
    if not any(name == "search_refund_policy" for name, _ in read):
        missing.append("search_refund_policy")
    if not missing:
        return ""
    return (
        f"{', '.join(missing)} found nothing yet for {result.order_id}. Use them first; if they "
        "find nothing, decide evidence_missing."
    )


def fits_the_price(result: Recommendation, state: State) -> str:
    """Accept only an amount that the order can have cost."""
    price: int = ORDERS.get(result.order_id, {}).get("total_cents", 0)
    most = price if result.decision == "refund" else 0
    return f"amount_cents can be {most} at most." if result.amount_cents > most else ""


def successes(state: State) -> set[tuple[str, str]]:
    """Return the calls that succeeded, each as the tool's name and the order it was asked for."""
    blocks = [block for message in state.messages for block in message["content"]]
    done = {result.id for result in state.results.values() if not result.is_error}
    done |= {
        block["tool_use_id"]
        for block in blocks
        if block["type"] == "tool_result" and not block.get("is_error")
    }
    uses = [block for block in blocks if block["type"] == "tool_use" and block["id"] in done]
    return {(use["name"], str(use["input"].get("order_id", ""))) for use in uses}


# ------------------------------------------------------------------ the agent and its workflow


def investigator(model: str) -> Agent[Recommendation]:
    """Return the agent; it holds no state of any run."""
    return Agent(
        "refund-investigator",
        model=model,
        instructions=(
            "You investigate whether the evidence supports a refund. Read the order, its delivery "
            "and the rules, then recommend. You cannot pay, and nobody wants you to. Use "
            "ask_human only for what the customer alone can know."
        ),
        tools=[read_order, read_delivery_status, search_refund_policy],
        policy=POLICY,
        output_type=Recommendation,
        evidence=[was_read, fits_the_price],
        budget=Budget(max_steps=12, max_tool_calls=20, max_total_tokens=200_000),
        ask_human=True,
    )


def goal(given: dict[str, str]) -> str:
    """Return what the agent is asked, from the input of the run."""
    return (
        f"Decide whether the evidence for a refund of order {given['order_id']} is sufficient. "
        f"The customer says: {given['complaint']}"
    )


def model_name() -> str:
    """Return the model's name from the environment; raise ``UserError`` if there is none."""
    if not (name := os.environ.get(MODEL, "")):
        raise UserError(
            f"{MODEL} is not set, so there is no model to ask; prices and terms differ, so none is "
            f"the default. Set it, e.g. {MODEL}=anthropic:NAME with ANTHROPIC_API_KEY, or "
            f"{MODEL}=openai:NAME@http://127.0.0.1:8080/v1."
        )
    return name


workflow = Workflow("refund-investigation", input=Request)
investigate = workflow.agent_loop(
    "investigate",
    "investigate-refund",
    max_iterations=20,
    timeout=timedelta(minutes=5),
    retry=Retry(max_attempts=5),
)
workflow.task("route", "route-recommendation", after=[investigate])

worker = Worker()


@worker.handler("route-recommendation")
async def route(ctx: TaskContext[Recommendation]) -> dict[str, Any]:
    is_refund = ctx.input.decision == "refund"
    queue = "refund-approval" if is_refund else "customer-service"
    return {"queue": queue, **ctx.input.model_dump()}


if __name__ == "__main__":
    print(__doc__)
else:
    worker.agent("investigate-refund", investigator(model_name()), goal=goal)
