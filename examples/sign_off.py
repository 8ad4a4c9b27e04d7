"""People and events decide: a choice, an approval without a worker, and an event from outside.

    route -+- (cents > 10_000) -> allowed (people decide) -+-> paid (waits for the event) -> ship
           +- (else) --------------------------------------+

Try it::

    treadle dev examples/sign_off.py
    treadle run start sale --input '{"order": 104, "cents": 25000}' --id sale-1
    treadle approvals approve allowed --run sale-1 --by ada --text "They are good for it."
    treadle event publish order.paid --payload '{"order": 104}'
    treadle run result sale-1
    treadle run timeline sale-1
"""

from datetime import timedelta

import msgspec

from treadle.sdk import Workflow
from treadle.sdk.approvals import Approved
from treadle.worker import TaskContext, Worker


class Order(msgspec.Struct, frozen=True):
    """What is sold."""

    order: int
    cents: int


class Before(msgspec.Struct, frozen=True):
    """What ``ship`` comes after; ``allowed`` is null if nobody had to be asked."""

    paid: dict[str, int]
    allowed: Approved | None


workflow = Workflow("sale", input=Order)
route = workflow.choice("route", {"ask": 'input["cents"] > 10_000'}, default="go")
allowed = workflow.approval(
    "allowed", prompt="A large order: may it go?", timeout=timedelta(days=3), after=route["ask"]
)
paid = workflow.wait_for_event(
    "paid",
    "order.paid",
    match='event["order"] == input["order"]',
    timeout=timedelta(days=14),
    after=[route, allowed],
)
workflow.task("ship", after=[paid, allowed])

worker = Worker()


@worker.handler("ship")
async def ship(ctx: TaskContext[Before]) -> str:
    by = f", allowed by {ctx.input.allowed.by}" if ctx.input.allowed else ""
    return f"order {ctx.input.paid['order']} is on its way{by}"


if __name__ == "__main__":
    print(__doc__)
