"""Approvals as steps: what people are asked by one, and what their answer makes of it. Pure.

approval step, active ──ask_of──> an ask in the inbox, like those of loops
a reply to it ──────────decision_of──> the step completes (``Approved``), or fails (rejected)
"""

from __future__ import annotations

import msgspec

from treadle.sdk.asks import NO_INPUT, Ask, Reply, bounded
from treadle.sdk.definition import ApprovalStep, expires_ms
from treadle.sdk.messages import Failure, MessageSent
from treadle.sdk.rfc3339 import written

REJECTED = "rejected"
"""Failure type of a step that was rejected."""


class Approved(msgspec.Struct, frozen=True, kw_only=True):
    """The output of an approval that was given."""

    approved: bool = True
    by: str = ""
    """Who approved, by the name that the answer was given with."""
    comment: str = ""
    at: str
    """When the answer was stored: RFC 3339, in UTC."""


def ask_of(
    step: ApprovalStep, started_ms: int, given: msgspec.Raw = NO_INPUT, *, to: str = ""
) -> Ask:
    """Return what people are asked by an active step; ``given`` is its input."""
    ask = Ask(
        id=step.id,
        kind="approval",
        text=step.prompt,
        input=given,
        asked_ms=started_ms,
        due_ms=expires_ms(step, started_ms),
        to=to or ", ".join(step.approvers),
        approvers=step.approvers,
    )
    return bounded((ask,))[0]


def reply_in(event: MessageSent) -> Reply | None:
    """Return the answer that a message holds; None if it holds none."""
    if event.kind != "reply":
        return None
    try:
        return msgspec.json.decode(event.payload, type=Reply)
    except (ValueError, RecursionError):
        return None  # Somebody has sent something else as a reply.


def is_decision(step: ApprovalStep, event: MessageSent) -> bool:
    """True if the message decides the step: an approval or a rejection, by one who may."""
    reply = reply_in(event)
    return (
        reply is not None
        and reply.call_id == step.id
        and reply.verdict in ("approve", "reject")
        and may_answer(step, reply.by)
    )


def may_answer(step: ApprovalStep, by: str) -> bool:
    """True if the step takes an answer that is given with this name."""
    return not step.approvers or by in step.approvers


def rejection(event: MessageSent) -> Failure | None:
    """Return the failure of the step that a deciding message rejects; None if it approves."""
    reply = reply_in(event)
    if reply is None or reply.verdict != "reject":
        return None
    by = f" by {reply.by}" if reply.by else ""
    text = f": {reply.text}" if reply.text else ""
    return Failure(REJECTED, f"it was rejected{by}{text}", retryable=False)


def output_of(event: MessageSent, time_ms: int) -> msgspec.Raw:
    """Return the output of the step that a message has approved."""
    reply = reply_in(event)
    approved = Approved(
        by=reply.by if reply else "",
        comment=reply.text if reply else "",
        at=written(time_ms),
    )
    return msgspec.Raw(msgspec.json.encode(approved))
