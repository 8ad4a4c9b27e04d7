"""Tickets are answered by a text service that takes two calls at a time, for many customers.

    draft (limited: the service, and each customer's share of it) -> send

The service takes two calls at once and sixty a minute; each more it refuses. Nobody holds a
worker while it waits for its turn. Tickets of the paid plan come first, customers of one plan take
turns, and a customer with a thousand tickets has three of them under way at once: the others are
queued, in the order in which they came.

Try it::

    treadle dev examples/flow_control.py
    for n in 1 2 3 4 5 6 7 8; do
        treadle run start answer-ticket --id free-$n \\
            --input '{"customer": "freebie", "plan": "free", "text": "How do I log in?"}'
    done
    treadle run start answer-ticket --id paid --watch \\
        --input '{"customer": "acme", "plan": "paid", "text": "Why is our bill so high?"}'
    treadle limits                 # who has the slots, and how many wait
    treadle explain free-8         # what it waits for
"""

import asyncio
from typing import Literal

import msgspec

from treadle.sdk import Retry, Workflow
from treadle.sdk.flow import Concurrency, RateLimit
from treadle.worker import TaskContext, Worker


class Ticket(msgspec.Struct, frozen=True):
    """Input of the workflow: what somebody asks."""

    customer: str
    plan: Literal["free", "paid"]
    text: str


class Draft(msgspec.Struct, frozen=True):
    """What the service has written."""

    text: str
    call: int
    """Which of its calls it was."""


class TextService:
    """Stands for a paid service with limits; a call too many is an error and costs all the same."""

    def __init__(self, at_once_max: int) -> None:
        self._at_once_max = at_once_max
        self._at_once = 0
        self._calls = 0

    async def complete(self, prompt: str) -> Draft:
        """Write an answer; raise ``ConnectionRefusedError`` if there are too many calls."""
        if self._at_once == self._at_once_max:
            raise ConnectionRefusedError(f"429: more than {self._at_once_max} calls at once")
        self._at_once += 1
        self._calls += 1
        call = self._calls
        try:
            await asyncio.sleep(0.3)
            return Draft(f"About {prompt.rstrip('?').lower()!r}: see the handbook.", call)
        finally:
            self._at_once -= 1


SERVICE = TextService(at_once_max=2)

workflow = Workflow(
    "answer-ticket",
    input=Ticket,
    # Runs: three of a customer at a time.
    concurrency=3,
    concurrency_key='input["customer"]',
)
draft = workflow.task(
    "draft",
    "draft-answer",
    # The service's limits, shared by every step of the namespace that names it.
    concurrency=Concurrency(2, scope="namespace", name="text-service"),
    rate_limits=RateLimit(60, per_s=60, scope="namespace", name="text-service"),
    # Whose turn it is: paid before free, and customers of one plan in turn.
    priority='50 if input["plan"] == "paid" else 0',
    fair_by='input["customer"]',
    timeout=30,
    retry=Retry(max_attempts=1),
)
workflow.task("send", "send-answer", after=[draft])

worker = Worker()


@worker.handler("draft-answer")
async def draft_answer(ctx: TaskContext[Ticket]) -> Draft:
    return await SERVICE.complete(ctx.input.text)


@worker.handler("send-answer")
async def send_answer(ctx: TaskContext[Draft]) -> Draft:
    return ctx.input


if __name__ == "__main__":
    print(__doc__)
