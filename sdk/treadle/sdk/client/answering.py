"""What runs ask people, and the answers: read off the registers, sent as messages to the steps.

An answer's message id is made of what it answers, so a step has one answer to each ask, the first
one. It is refused here if the step does not ask that any more, or asks it about other arguments;
what else may be wrong with it, the worker that takes it finds (``Ask.problem``).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, TypedDict

import msgspec

from treadle.sdk.approvals import ask_of, reply_in
from treadle.sdk.asks import Ask, Reply, answer_id
from treadle.sdk.client import deciding, requests, sending
from treadle.sdk.client.deciding import check_same
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.planned import graph_of
from treadle.sdk.client.store import Store
from treadle.sdk.client.waiter import Deadline, Waiter
from treadle.sdk.definition import AgentLoopStep, ApprovalStep
from treadle.sdk.errors import RunConflict, StoredUnreadable, UserError, sentence
from treadle.sdk.given import Graph
from treadle.sdk.messages import (
    Delayed,
    Ended,
    MessageSent,
    Parked,
    Queued,
    Register,
    Sleeping,
    StepWaiting,
    Task,
)
from treadle.sdk.planners import has_planners
from treadle.sdk.run import WAITING, RunDocument, StepEntry

READS_AT_ONCE = 64
"""Registers asked for at once: a listing of thousands of waiting runs takes seconds."""
HASH_SHOWN = 12


class PendingAsk(msgspec.Struct, frozen=True, kw_only=True):
    """An ask, and where it stands open."""

    run: str
    workflow: str
    step: str
    ask: Ask


class Approval(TypedDict, total=False):
    """What an approval says: see ``Client.approve``."""

    args_hash: str
    input: Mapping[str, Any] | None
    text: str
    by: str
    wait_s: float


class _Place(msgspec.Struct, frozen=True):
    """A step that may wait."""

    document: RunDocument
    step: str
    type: str
    """Of a loop; empty for an approval."""
    graph: Graph


async def pending(store: Store, run: str | None) -> list[PendingAsk]:
    """Return what the run asks, or what all runs ask, oldest first."""
    if run is not None:
        document = await requests.require(store, run)
        documents = [] if document is None else [document]
        places = [p async for p in _places(store, documents, is_exact=True)]
    else:
        found_all = [each async for each in store.documents()]
        documents = [each for each in found_all if not isinstance(each, StoredUnreadable)]
        places = [p async for p in _places(store, documents, is_exact=False)]
    found: list[PendingAsk] = []
    is_exact = run is not None
    for start in range(0, len(places), READS_AT_ONCE):
        part = places[start : start + READS_AT_ONCE]
        reads = (_asks(store, place, is_exact=is_exact) for place in part)
        for asks in await asyncio.gather(*reads):
            found.extend(asks)
    return sorted(found, key=lambda each: (each.ask.asked_ms, each.run, each.step, each.ask.id))


async def answer(store: Store, run: str, step: str, reply: Reply, wait_s: float) -> int:
    """Store the answer and return its sequence; raise ``RunConflict`` if it comes too late."""
    if (approval := await deciding.approval_step(store, run, step)) is not None:
        return await deciding.decide(store, *approval, reply, wait_s)
    found = [each for each in await pending(store, run) if each.step == step]
    asks = [each.ask for each in found] or await _looked_at(store, run, step)
    ask = next((each for each in asks if each.id == reply.call_id), None)
    if ask is None:
        return await _answered_before(store, run, step, reply, asks)
    reply = _checked(run, ask, reply)
    sequence = await sending.send(store, run, step, reply, "reply", answer_id(ask))
    stored = await store.event(sequence)
    earlier = None if stored is None else _reply_in(stored.data)
    if earlier is not None:
        check_same(run, reply, earlier)
    if wait_s > 0:
        await _taken(store, run, step, ask.id, sequence, Deadline(wait_s))
    return sequence


# ------------------------------------------------------------------ reading


async def _places(
    store: Store, documents: Iterable[RunDocument], *, is_exact: bool
) -> AsyncIterator[_Place]:
    """Yield the approvals that are asked, and the loops that may wait: of one run all that live,
    of all runs those that are said to.

    The document follows the register: of one run the register is looked at in any case.
    """
    graphs: dict[tuple[str, str], Graph | None] = {}
    for document in documents:
        if document.is_terminal:
            continue
        live = [name for name, e in document.steps.items() if _may_wait(e, is_exact=is_exact)]
        active = [name for name, entry in document.steps.items() if entry.status == "active"]
        if not (live or active):
            continue
        key = (document.workflow, document.definition)
        if key not in graphs:
            try:
                definition = await store.definition(*key)
            except StoredUnreadable:
                if is_exact:
                    raise
                definition = None
            graphs[key] = Graph(definition) if definition else None
        graph = graphs[key]
        if graph is not None and has_planners(graph.definition):
            graph = await graph_of(store, document)
        if graph is None:
            continue
        for step in graph.steps.values():
            if isinstance(step, AgentLoopStep) and step.id in live:
                yield _Place(document, step.id, step.type, graph)
            if isinstance(step, ApprovalStep) and step.id in active:
                yield _Place(document, step.id, "", graph)


def _may_wait(entry: StepEntry, *, is_exact: bool) -> bool:
    if is_exact:
        return entry.status in ("active", "parked")
    return entry.status == "parked" and entry.failure is not None and entry.failure.type == WAITING


async def _asks(store: Store, place: _Place, *, is_exact: bool) -> list[PendingAsk]:
    document = place.document
    if not place.type:
        return [await _approval(store, place)]
    try:
        held = await store.register(document.run, place.step, place.type, document.domain)
    except StoredUnreadable:
        if is_exact:
            raise
        return []  # One damaged run must not hide what the others ask.
    if held is None or not isinstance(held.register, Parked):
        return []
    return [
        PendingAsk(run=document.run, workflow=document.workflow, step=place.step, ask=ask)
        for ask in held.register.asks
    ]


async def _approval(store: Store, place: _Place) -> PendingAsk:
    """Return what an approval step asks, with the input of the step."""
    document, step = place.document, place.graph.steps[place.step]
    assert isinstance(step, ApprovalStep)
    given = await deciding.input_of(store, document, place.graph, step)
    ask = ask_of(step, document.steps[step.id].started_ms, given)
    return PendingAsk(run=document.run, workflow=document.workflow, step=step.id, ask=ask)


# ------------------------------------------------------------------ answering


def _checked(run: str, ask: Ask, reply: Reply) -> Reply:
    """Return the reply, bound to what is asked; raise if it is about something else."""
    again = f"Look at it again: `treadle approvals show {ask.id} --run {run}`."
    if ask.kind == "question" and reply.verdict == "approve":
        raise UserError(
            f"{ask.id!r} of run {run!r} is a question, and nothing can be approved: it wants a "
            "text. Answer it."
        )
    if ask.kind == "unsafe" and reply.input is not None:
        raise UserError(
            f"{ask.id!r} of run {run!r} may have run already, with the arguments that it had, so "
            "it cannot run with others. Approve it as it was, or answer with its result."
        )
    if reply.args_hash and reply.args_hash != ask.args_hash:
        raise RunConflict(
            run,
            f"asks about {ask.id!r} with arguments of hash {ask.args_hash[:HASH_SHOWN] or 'none'}, "
            f"and the answer is about {reply.args_hash[:HASH_SHOWN]}",
            again,
        )
    if reply.verdict == "approve" and ask.args_hash and not reply.args_hash:
        raise UserError(
            f"the approval of {ask.id!r} of run {run!r} does not say of which arguments. Give the "
            f"hash of those that were seen. {again}"
        )
    return msgspec.structs.replace(reply, args_hash=ask.args_hash)


async def _looked_at(store: Store, run: str, step: str) -> list[Ask]:
    """Return what the step asked before a worker took it up, and may ask again.

    While the worker looks at one answer, or runs what was approved, others can be given.
    """
    register = await _register(store, run, step)
    match register:
        case Task():
            task = register
        case Queued() | Delayed() | Sleeping():
            task = register.task
        case _:
            return []
    stored = await store.event(task.asked) if task.asked else None
    event = decode_event(stored.data) if stored else None
    return list(event.asks) if isinstance(event, StepWaiting) else []


async def _answered_before(
    store: Store, run: str, step: str, reply: Reply, asks: Sequence[Ask]
) -> int:
    """Return the sequence of the same answer given before; raise ``RunConflict`` otherwise."""
    document = await requests.require(store, run)
    found: tuple[int, Reply] | None = None
    if document is not None:
        s = store.subjects
        subject = s.messages(run, step, document.domain)
        async for stored in store.js.read(s.events_stream, subject):
            earlier = _reply_in(stored.data)
            if earlier is not None and earlier.call_id == reply.call_id:
                found = stored.sequence, earlier
    if found is None:
        if document is not None and document.is_terminal:
            raise RunConflict(
                run,
                f"has ended as {document.status}, and asks nothing any more",
                f"See the run: `treadle run show {run}`.",
            )
        have = ", ".join(repr(each.id) for each in asks) or "nothing"
        raise RunConflict(
            run,
            f"does not ask about {reply.call_id!r} at step {step!r} (it asks about: {have})",
            f"See what it asks: `treadle approvals list --run {run}`.",
        )
    check_same(run, reply, found[1])
    return found[0]


def _reply_in(raw: bytes) -> Reply | None:
    event = decode_event(raw)
    return reply_in(event) if isinstance(event, MessageSent) else None


async def _taken(
    store: Store, run: str, step: str, id: str, sequence: int, deadline: Deadline
) -> None:
    """Wait until a worker has taken the answer; raise ``UserError`` if it has refused it.

    While a worker looks at it the step asks nothing: what counts is what it asks, or does, next.
    """
    subject = store.subjects.run_document(run)
    async with Waiter(store.js.connection, subject) as waiter:
        while deadline.remaining_s() > 0:
            held = await _register(store, run, step)
            if held is None or isinstance(held, Ended):
                return
            if isinstance(held, Parked) and held.waits:
                now = next((each for each in held.asks if each.id == id), None)
                if now is None:
                    return
                if now.after >= sequence:
                    raise UserError(
                        f"the answer to {id!r} of run {run!r} was not taken: "
                        f"{sentence(now.problem)} It is still asked: correct the answer and give "
                        "it again."
                    )
            await waiter.wait(deadline.remaining_s())


async def _register(store: Store, run: str, step: str) -> Register | None:
    """Return the register of a live step; ``None`` if its run has ended."""
    document = await requests.require(store, run)
    documents = [] if document is None else [document]
    async for place in _places(store, documents, is_exact=True):
        if place.step == step and place.type:
            held = await store.register(run, step, place.type, place.document.domain)
            return None if held is None else held.register
    return None
