"""A person decides: a draft waits for a signal, for days if need be, and no worker is held.

    draft -> decision (waits for the signal of that name) -> publish

Try it::

    treadle dev examples/approval.py
    treadle run start announce --input '"Version 1.0 is out"' --id release-1
    treadle run signal release-1 decision --payload '{"approved": true, "by": "Ada"}'
    treadle run result release-1
"""

from datetime import timedelta

import msgspec

from treadle.sdk import NonRetryable, Workflow
from treadle.worker import TaskContext, Worker


class Decision(msgspec.Struct, frozen=True):
    """Payload of the signal."""

    approved: bool
    by: str = "somebody"


class Parts(msgspec.Struct, frozen=True):
    """What ``publish`` comes after: the draft and the decision."""

    draft: str
    decision: Decision


workflow = Workflow("announce", input=str)
draft = workflow.task("draft", "write-draft")
decision = workflow.wait_for_signal("decision", after=[draft], timeout=timedelta(days=3))
publish = workflow.task("publish", "publish-draft", after=[draft, decision])

worker = Worker()


@worker.handler("write-draft")
async def write_draft(ctx: TaskContext[str]) -> str:
    return f"Dear all, {ctx.input}."


@worker.handler("publish-draft")
async def publish_draft(ctx: TaskContext[Parts]) -> str:
    if not ctx.input.decision.approved:
        raise NonRetryable(f"{ctx.input.decision.by} did not approve the draft")
    return f"{ctx.input.draft} (approved by {ctx.input.decision.by})"


if __name__ == "__main__":
    print(__doc__)
