"""Approvals as steps: what they ask, read off the run's document, and the decisions of people.

An answer is a message to the step, and the first one in the stream that decides is the decision:
the engine takes that one and no other. So the answer is stored, and then the stream is read again,
which says who was first.
"""

from __future__ import annotations

import msgspec

from treadle.sdk import approvals
from treadle.sdk.asks import Reply
from treadle.sdk.client import requests
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.planned import graph_of
from treadle.sdk.client.result import put_together
from treadle.sdk.client.sending import append
from treadle.sdk.client.store import Store
from treadle.sdk.client.waiter import Deadline, Waiter
from treadle.sdk.decisions import first_decision
from treadle.sdk.definition import ApprovalStep, Step
from treadle.sdk.errors import InvariantError, RunConflict, UserError
from treadle.sdk.given import Graph, failed_before, shape_of
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.ids import new_nonce
from treadle.sdk.messages import MessageSent
from treadle.sdk.run import RunDocument

DECIDED_WITHIN_S = 1.0
"""An engine that runs has taken an answer well within; without one the answer is stored."""


async def approval_step(
    store: Store, run: str, step: str
) -> tuple[RunDocument, ApprovalStep] | None:
    """Return the run and its approval step of that id; None if the step is no such step."""
    document = await requests.require(store, run)
    if document is None:
        return None
    graph = await graph_of(store, document)
    found = graph.steps.get(step) if graph else None
    return (document, found) if isinstance(found, ApprovalStep) else None


async def decide(
    store: Store, document: RunDocument, step: ApprovalStep, reply: Reply, wait_s: float
) -> int:
    """Store the decision and return its sequence; raise ``RunConflict`` if it comes too late."""
    run = document.run
    check_reply(run, step, reply)
    earlier = await first_decision(store.js, store.subjects, document, step)
    if earlier is None:
        _check_asked(document, step)
        payload = msgspec.Raw(msgspec.json.encode(reply))
        message = MessageSent(step=step.id, kind="reply", id=new_nonce(), payload=payload)
        subject = store.subjects.messages(run, step.id, document.domain)
        await append(store, run, subject, message, is_fresh=True)
        earlier = await first_decision(store.js, store.subjects, document, step)
    if earlier is None:
        raise InvariantError(
            f"the answer to step {step.id!r} of run {run!r} is stored and not there"
        )
    decided = approvals.reply_in(earlier.message)
    assert decided is not None
    check_same(run, reply, decided)
    await _taken(store, run, step, earlier.sequence, Deadline(max(wait_s, DECIDED_WITHIN_S)))
    return earlier.sequence


def check_same(run: str, reply: Reply, earlier: Reply) -> None:
    """Raise ``RunConflict`` unless the earlier answer says the same, and by the same person.

    Of a verdict, words and a name that are left out are those of the earlier one.
    """
    text = reply.text if reply.verdict == "answer" else reply.text or earlier.text
    args_hash, by = reply.args_hash or earlier.args_hash, reply.by or earlier.by
    mine = (reply.verdict, reply.input, text, args_hash, by)
    if mine != (earlier.verdict, earlier.input, earlier.text, earlier.args_hash, earlier.by):
        by = f" by {earlier.by}" if earlier.by else ""
        said = {"approve": "approved", "reject": "rejected", "answer": "answered"}[earlier.verdict]
        edited = " with other arguments" if earlier.input is not None else ""
        raise RunConflict(
            run,
            f"has an answer to {reply.call_id!r} already: it was {said}{edited}{by}, and the first "
            "answer counts",
            f"See the run: `treadle run show {run}`.",
        )


async def input_of(store: Store, document: RunDocument, graph: Graph, step: Step) -> msgspec.Raw:
    """Return the input of a step that has begun, as JSON."""
    if failed := failed_before(graph, document, step):
        return msgspec.Raw(msgspec.json.encode(failed))
    shape = shape_of(graph, document, step)
    if shape is None:
        stored = await store.event(document.requested)
        event = decode_event(stored.data) if stored else None
        if stored is None or not isinstance(event, Carrier):
            raise InvariantError(f"the request of run {document.run!r} is gone")
        return handed_on(event, stored.time_ms)
    return await put_together(store, document, graph, shape)


# ------------------------------------------------------------------ leaves


def check_reply(run: str, step: ApprovalStep, reply: Reply) -> None:
    """Raise ``RunConflict`` or ``UserError`` unless the reply is one that the step takes."""
    asks = f"step {step.id!r} of run {run!r} asks for an approval"
    if reply.call_id != step.id or reply.args_hash:
        what = "arguments" if reply.call_id == step.id else repr(reply.call_id)
        raise RunConflict(
            run,
            f"asks at step {step.id!r} about the step itself, not about {what}",
            f"See what it asks: `treadle approvals list --run {run}`.",
        )
    if reply.verdict == "answer":
        raise UserError(f"{asks}, and a text decides nothing. Approve or reject it.")
    if reply.input is not None:
        raise UserError(f"{asks}, and no call that could have other arguments. Leave them out.")
    if not approvals.may_answer(step, reply.by):
        who = ", ".join(step.approvers)
        said = f"{reply.by!r} is none of them" if reply.by else "the answer names nobody"
        raise UserError(
            f"{asks} by {who}, and {said}. Let one of them answer; the name is given with `--by`, "
            "or by=... in Python."
        )


def _check_asked(document: RunDocument, step: ApprovalStep) -> None:
    entry = document.steps.get(step.id)
    status = entry.status if entry else "waiting"
    if status == "active":
        return
    why = f" ({entry.failure})" if entry and entry.failure else ""
    is_before = status in ("waiting", "deciding")
    told = "has not come to" if is_before else "does not ask any more at"
    told = f"{told} step {step.id!r}, which is {status}{why}"
    if document.is_terminal and is_before:
        told = f"has ended as {document.status}, and never came to step {step.id!r}"
    raise RunConflict(
        document.run,
        told,
        f"See the run: `treadle run show {document.run}`.",
    )


async def _taken(
    store: Store, run: str, step: ApprovalStep, sequence: int, deadline: Deadline
) -> None:
    """Wait until an engine has taken the decision; raise ``RunConflict`` if it came too late."""
    async with Waiter(store.js.connection, store.subjects.run_document(run)) as waiter:
        while True:
            document = await store.document(run)
            entry = document.steps.get(step.id) if document else None
            if document is None or entry is None or entry.event == f"e{sequence}":
                return
            if entry.status != "active":
                _check_asked(document, step)
            if deadline.remaining_s() <= 0:
                return
            await waiter.wait(deadline.remaining_s())
