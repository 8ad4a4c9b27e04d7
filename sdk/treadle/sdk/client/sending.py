"""Sending a message to a loop: appended to the step's own subject, each id once and for ever.

    newest of the step's messages ── is the id among them? ── append behind it ── refused: again

The append names the newest message it knows, so two senders of one id cannot both succeed, and a
write whose acknowledgement was lost is found by its id. No engine has to be up.
"""

from __future__ import annotations

import asyncio
from typing import get_args

import msgspec

from treadle.sdk import payload
from treadle.sdk.bus.jetstream import Stored
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.planned import definition_of
from treadle.sdk.client.requests import requested, require
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.errors import RunConflict, ServerUnavailable, UnknownRun, UserError
from treadle.sdk.ids import check_id, new_nonce
from treadle.sdk.messages import MessageKind, MessageSent
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import MAIN_DOMAIN, request_id

KINDS: tuple[str, ...] = get_args(MessageKind)
LOOKS_S = (0.02, 0.1, 0.5, 2.0, 5.0)
"""Pauses between looks for a message that the leader has and a follower has not yet."""


async def send(
    store: Store, run: str, step: str, value: object, kind: MessageKind, message_id: str | None
) -> int:
    """Store a message to a loop and return its sequence; the same id again is the same message."""
    check_id("step", step)
    if kind not in KINDS:
        raise UserError(f"kind {kind!r} is none of {', '.join(KINDS)}. Choose one of them.")
    raw = payload.encode(f"message to step {step!r}", value)
    is_fresh = message_id is None
    message_id = new_nonce() if message_id is None else check_id("message id", message_id)
    document = await require(store, run)
    if document is not None and document.is_terminal:
        raise RunConflict(
            run,
            f"has ended as {document.status}, so the message to step {step!r} comes too late",
            "Send to a run that has not ended; `treadle run list` shows them.",
        )
    await _check_step(store, run, document, step)
    message = MessageSent(step=step, kind=kind, id=message_id, payload=msgspec.Raw(raw))
    domain = document.domain if document else MAIN_DOMAIN
    subject = store.subjects.messages(run, step, domain)
    return await append(store, run, subject, message, is_fresh=is_fresh)


async def append(
    store: Store, run: str, subject: str, message: MessageSent, *, is_fresh: bool
) -> int:
    """Store a message behind those to its step, unless one has its id; return its sequence.

    ``is_fresh`` says that nobody else has the id.
    """
    stream = store.subjects.events_stream
    data = msgspec.json.encode(message)
    read_up_to = -1
    while True:
        newest = await store.js.last(stream, subject)
        expected = newest.sequence if newest else 0
        if is_fresh and read_up_to < 0:
            read_up_to = expected  # Nobody else has this id.
        found = await _find(store, subject, message.id, max(0, read_up_to), newest)
        if found is not None:
            return found
        read_up_to = expected
        result = await store.js.compare_and_set(
            stream,
            subject,
            data,
            expected=expected,
            message_id=request_id(run, f"message:{message.step}", message.id),
            is_mine=lambda raw: _id_of(raw) == message.id,
            full_s=FULL_S,
        )
        if result.stored is not None:
            return result.stored.sequence


async def _find(
    store: Store, subject: str, message_id: str, after: int, newest: Stored | None
) -> int | None:
    """Return the sequence of the message of that id among those up to the newest."""
    for pause_s in (*LOOKS_S, None):
        if newest is None or newest.sequence <= after:
            return None
        stream = store.subjects.events_stream
        async for stored in store.js.read(stream, subject, start=after + 1):
            after = stored.sequence
            if _id_of(stored.data) == message_id:
                return stored.sequence
        if pause_s is not None and newest.sequence > after:
            await asyncio.sleep(pause_s)
    raise ServerUnavailable(
        f"message {newest.sequence if newest else 0} of {subject!r} is stored but cannot be read "
        "from the server that answers. Try again; see `treadle doctor`."
    )


def _id_of(raw: bytes) -> str | None:
    event = decode_event(raw)
    return event.id if isinstance(event, MessageSent) else None


async def _check_step(store: Store, run: str, document: RunDocument | None, step: str) -> None:
    """Raise ``UserError`` if the run's workflow has no loop of that name."""
    if document is not None:
        workflow, definition = document.workflow, await definition_of(store, document)
    else:
        found = await requested(store, run, None)
        if found is None:  # Early signals for a run that nobody has started.
            raise UnknownRun(run)
        workflow = found[0].workflow
        definition = await store.definition(workflow, found[0].definition)
    if definition is None:
        return
    loops = [each.id for each in definition.steps if isinstance(each, AgentLoopStep)]
    if step not in loops:
        have = ", ".join(map(repr, loops)) or "none"
        raise UserError(
            f"workflow {workflow!r} has no agent loop {step!r} (its agent loops: {have}), and only "
            "loops take messages. Send to one of them, or send a signal."
        )
