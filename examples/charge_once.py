"""A card is charged once, whatever dies: the intention is written down before the charge.

Try it::

    treadle dev examples/charge_once.py
    treadle run start order --input '{"order": "O-104", "cents": 4900}' --wait

``charge_once_test.py`` kills its worker and its engine at every moment there is.
"""

from __future__ import annotations

from typing import Protocol

import msgspec

from treadle.sdk import Workflow
from treadle.worker import TaskContext, Worker


class Order(msgspec.Struct):
    """Input of the workflow."""

    order: str
    cents: int


class Bank(Protocol):
    """What the worker asks of a bank that knows no idempotency keys."""

    async def charge(self, reference: str, cents: int) -> str:
        """Charge the card, and return the receipt."""
        ...

    async def find(self, reference: str) -> str | None:
        """Return the receipt of a charge that was made; None if it was not."""
        ...


workflow = Workflow("order", input=Order)
charge = workflow.task("charge")
workflow.task("confirm", after=charge)


def worker_of(bank: Bank) -> Worker:
    """Make a worker that charges with this bank."""
    worker = Worker()

    @worker.handler("charge")
    async def charge(ctx: TaskContext[Order]) -> str:
        order = ctx.input
        if await ctx.load_checkpoint(bool):
            # An earlier execution has begun: whether it came to the charge, only the bank knows.
            receipt = await bank.find(order.order)
            if receipt is not None:
                return receipt
        await ctx.checkpoint(True)
        return await bank.charge(order.order, order.cents)

    @worker.handler("confirm")
    async def confirm(ctx: TaskContext[str]) -> str:
        return f"paid, receipt {ctx.input}"

    return worker


class PaperBank:
    """A bank in memory, for a first try."""

    def __init__(self) -> None:
        self.receipts: dict[str, str] = {}

    async def charge(self, reference: str, cents: int) -> str:
        self.receipts[reference] = f"{reference}/{cents}"
        return self.receipts[reference]

    async def find(self, reference: str) -> str | None:
        return self.receipts.get(reference)


worker = worker_of(PaperBank())
