"""A run that comes to a stop goes on: parked when its attempts are used up, retried, forked.

    check -> transfer (parks while the bank is closed) -> notify (fails for good)

Try it: the bank is open as long as there is a file ``bank-is-open`` in this directory::

    treadle dev examples/payout.py
    treadle run start payout --id p1 --input '{"cents": 4900, "mail": "ana at example.org"}'
    treadle explain p1                          # parked: the bank is closed
    touch bank-is-open
    treadle run resume p1                       # two more attempts: the money is transferred
    treadle dead list                           # the run has failed: that is no mail address
    treadle run fork p1 --from-step notify --input '{"mail": "ana@example.org", "receipt": "R-1"}'

The fork transfers nothing: what has completed is taken over.
"""

import os
from pathlib import Path

import msgspec

from treadle.sdk import NonRetryable, Retry, Workflow
from treadle.worker import TaskContext, Worker

BANK = Path(os.environ.get("PAYOUT_BANK", "bank-is-open"))


class Payout(msgspec.Struct):
    """Input of the workflow."""

    cents: int
    mail: str


class Paid(msgspec.Struct):
    """What the transfer came to, and whom to tell."""

    receipt: str
    mail: str


workflow = Workflow("payout", input=Payout)
check = workflow.task("check")
retry = Retry(max_attempts=2, delay_s=0.2, on_exhausted="park")
transfer = workflow.task("transfer", after=check, retry=retry)
workflow.task("notify", after=transfer)

worker = Worker()


@worker.handler("check")
async def checked(ctx: TaskContext[Payout]) -> Payout:
    if ctx.input.cents <= 0:
        raise NonRetryable("there is nothing to pay out")
    return ctx.input


@worker.handler("transfer")
async def transferred(ctx: TaskContext[Payout]) -> Paid:
    if not BANK.exists():
        raise ConnectionError("the bank is closed")
    return Paid(receipt=f"R-{ctx.input.cents} at attempt {ctx.attempt}", mail=ctx.input.mail)


@worker.handler("notify")
async def notify(ctx: TaskContext[Paid]) -> str:
    if "@" not in ctx.input.mail:
        raise ValueError(f"{ctx.input.mail!r} is no mail address")
    return f"told {ctx.input.mail} of {ctx.input.receipt}"


if __name__ == "__main__":
    print(__doc__)
