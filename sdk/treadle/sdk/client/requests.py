"""What a client asks of a run: start, signal, cancel, pause, resume. Each is one stored event.

    start   no expectation on the subject: an early signal would make it impossible. The run's
            document makes it exactly one run; the first request stored is the one that counts.
    all     published again, with the same message id, until it is acknowledged. It may be
            stored twice: the engine counts each once.

An acknowledged request is durable, also while no engine runs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, NamedTuple

import msgspec

from treadle.sdk import payload, schema_check, spending
from treadle.sdk.beginning import When
from treadle.sdk.client import refusing
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.collecting import Batch
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import InvalidPayload, RunConflict, StoredUnreadable, UnknownRun
from treadle.sdk.ids import check_id, new_nonce, new_run_id
from treadle.sdk.lanes import lane_key
from treadle.sdk.messages import (
    CancelRequested,
    ClientEvent,
    PauseRequested,
    ResumeRequested,
    RunRequested,
    SignalReceived,
)
from treadle.sdk.metadata import Given, checked
from treadle.sdk.run import Pause, RunDocument, sequence_of
from treadle.sdk.scheduling import begins_text
from treadle.sdk.singletons import Placed
from treadle.sdk.subjects import request_id
from treadle.sdk.tracing.calling import Origin

UNKNOWN_LOOKS_S = (0.05, 0.2, 0.75)
"""Pauses between looks for a run that is not there: in a cluster a deposed leader may answer for
a moment, and does not know what was stored after it."""

STORED_LOOKS_S = (2.0, 4.0)
"""Further ones for a run whose request this client knows to be stored."""


class Begun(NamedTuple):
    """A run that is requested, and whether it was not before."""

    run: str
    is_new: bool


async def begin(
    store: Store,
    workflow: str,
    content_hash: str,
    raw_input: bytes,
    run: str | None,
    metadata: Mapping[str, Given] | None,
    place: Placed,
    origin: Origin,
) -> Begun:
    """Request a run; the same id with the same request is the same run."""
    request = RunRequested(
        workflow=workflow,
        definition=content_hash,
        input=msgspec.Raw(raw_input),
        metadata=checked(metadata or {}),
        lane=place.lane,
        singleton=place.singleton,
        places=place.places,
        priority=place.priority,
        version_policy=place.version_policy,
        start_at_ms=place.when.at_ms,
        start_after_ms=place.when.after_ms,
        trace=origin.ref,
        caller=origin.caller,
        trace_state=origin.state,
    )
    if run is None:
        run = new_run_id()
        await _store(store, run, "start", new_nonce(), request)
        return Begun(run, is_new=True)
    check_id("run id", run)
    if await _existing(store, run, request):
        return Begun(run, is_new=False)
    await _store(store, run, "start", new_nonce(), request)
    # Another start of this id may have been stored in between: the first one is the run.
    await _existing(store, run, request)
    return Begun(run, is_new=True)


def check_input(definition: WorkflowDefinition | None, raw: bytes) -> None:
    """Raise ``InvalidPayload`` if the input cannot fit the schema that the workflow stored."""
    if definition is not None:
        is_list = isinstance(definition.collect, Batch)
        check_schema(definition.name, definition.input_schema, raw, is_list=is_list)


def check_schema(
    name: str, schema: Mapping[str, Any] | None, raw: bytes, *, is_list: bool = False
) -> None:
    """Raise ``InvalidPayload`` if the input of that workflow cannot fit its schema.

    ``is_list``: it is a list, and the schema is that of what is in it.
    """
    if schema is None and not is_list:
        return
    value = msgspec.json.decode(raw)
    if is_list:
        found = schema_check.problems_of_list(value, schema)
    else:
        found = schema_check.problems(value, schema or {})
    if not found:
        return
    remedy = f"Correct it; `treadle workflow show {name}` has the schema"
    if value is None:
        remedy = f"Give one: input=..., or `treadle run start {name} --input JSON`"
    raise InvalidPayload(
        f"input of workflow {name!r}",
        f"{'there is none, and it' if value is None else 'it'} does not fit: {'; '.join(found)}",
        remedy,
    )


async def signal(store: Store, run: str, name: str, value: object, signal_id: str | None) -> str:
    """Send a signal and return its id; a run counts each id once."""
    check_id("signal name", name)
    raw = payload.encode(f"payload of signal {name!r}", value)
    signal_id = new_nonce() if signal_id is None else check_id("signal id", signal_id)
    document = await require(store, run)
    if document is not None and document.is_terminal:
        raise RunConflict(
            run,
            f"has ended as {document.status}, so nothing is left to receive signal {name!r}",
            "Signal a run that has not ended; `treadle run list` shows them.",
        )
    event = SignalReceived(name=name, payload=msgspec.Raw(raw), id=signal_id)
    await _store(store, run, f"signal:{name}", signal_id, event)
    return signal_id


async def cancel(store: Store, run: str, reason: str, *, now: bool = False) -> bool:
    """Ask for the run's end; False if it is cancelled already, or undoes what it has done.

    Also of a run whose document cannot be read: the engine ends it by its request.
    """
    try:
        document = await require(store, run)
    except StoredUnreadable:
        document = None
    if document is not None and document.is_terminal:
        if document.status == "cancelled":
            return False
        raise RunConflict(
            run,
            f"has ended as {document.status} and cannot be cancelled",
            f"See it: `treadle run show {run}`.",
        )
    if document is not None and document.undoing and not (document.is_paused or now):
        return False
    await _store(store, run, "cancel", new_nonce(), CancelRequested(reason=reason, now=now))
    return True


async def pause(store: Store, run: str, reason: str) -> bool:
    """Ask for a pause; return False for a run that is paused already, and stays as it is."""
    document = await require(store, run)
    if document is not None and document.is_terminal:
        raise RunConflict(
            run,
            f"has ended as {document.status} and cannot be paused",
            f"See it: `treadle run show {run}`.",
        )
    is_paused = document is not None and document.is_paused
    if is_paused and await _is_pausing(store, run, document):
        return False
    await _store(store, run, "pause", new_nonce(), PauseRequested(reason=reason))
    return True


async def _is_pausing(store: Store, run: str, document: RunDocument | None) -> bool:
    """True if the run is paused by what is stored, also if no engine has said so yet."""
    known = (document and document.pause) or Pause()
    is_paused, since = known.holds, max(sequence_of(known.event), sequence_of(known.resumed))
    async for stored in store.events(run, since + 1):
        match decode_event(stored.data):
            case PauseRequested():
                is_paused = True
            case ResumeRequested(step=""):
                is_paused = False
            case _:
                pass
    return is_paused


async def resume(store: Store, run: str, request: ResumeRequested) -> None:
    """End a pause and move parked steps on.

    ``RunConflict`` when there is nothing to move, or a bound would stop it again.
    """
    document = await require(store, run)
    if document is not None and document.is_paused and not document.is_terminal:
        if request.step:
            raise RunConflict(
                run,
                f"is paused, so its step {request.step!r} cannot go on alone",
                f"Resume the run: `treadle run resume {run}`.",
            )
        await _store(store, run, "resume", new_nonce(), request)
        return
    steps = document.steps if document else {}
    parked = [name for name, entry in steps.items() if entry.status == "parked"]
    if request.step and request.step not in parked:
        have = ", ".join(map(repr, parked)) or "none"
        raise RunConflict(
            run,
            f"has no parked step {request.step!r} (parked: {have})",
            f"See it: `treadle run show {run}`.",
        )
    is_live = document is None or not document.is_terminal
    if is_live and not parked and await _is_pausing(store, run, document):
        await _store(store, run, "resume", new_nonce(), request)
        return
    if is_live and not parked and document is not None and not request.step:
        limits = document.limits
        if spending.raised(limits, request.max_spending, request.add_spending) is not limits:
            await _store(store, run, "resume", new_nonce(), request)
            return  # The budget that the run shares with its children is raised.
    if document is None or not parked:
        status = document.status if document else "not yet taken by an engine"
        raise RunConflict(
            run,
            f"is {status} and has no parked step to resume",
            f"See it: `treadle run show {run}`.",
        )
    stuck = [
        await refusing.refusal(store, document, name, request)
        for name in ([request.step] if request.step else parked)
    ]
    conflicts = [conflict for conflict in stuck if conflict is not None]
    if len(conflicts) == len(stuck) and not _helps_others(document, request):
        raise conflicts[0]
    await _store(store, run, "resume", new_nonce(), request)


def _helps_others(document: RunDocument, request: ResumeRequested) -> bool:
    """True if a resume raises the budget of a run that has more under way than parked steps."""
    limits = spending.raised(document.limits, request.max_spending, request.add_spending)
    is_raised = limits is not document.limits and not request.step
    return is_raised and any(entry.status == "active" for entry in document.steps.values())


def looks_s(store: Store, run: str) -> tuple[float, ...]:
    """Return the pauses between looks for a run that is not there."""
    return (*UNKNOWN_LOOKS_S, *STORED_LOOKS_S) if run in store.started else UNKNOWN_LOOKS_S


async def require(store: Store, run: str) -> RunDocument | None:
    """Return the run's document, None if it is only requested; raise ``UnknownRun``."""
    check_id("run id", run)
    for pause_s in (*looks_s(store, run), None):
        # The engine writes a document only for a request that is stored, so an empty subject
        # and no document are no run.
        document = await store.document(run)
        if document is not None or await store.last_event(run) is not None:
            return document
        if pause_s is not None:
            await asyncio.sleep(pause_s)
    raise UnknownRun(run)


async def requested(
    store: Store, run: str, document: RunDocument | None
) -> tuple[RunRequested, int] | None:
    """Return the request that made the run, and its time in milliseconds."""
    if document is not None and document.requested:
        stored = await store.event(document.requested)
        event = decode_event(stored.data) if stored else None
        return (event, stored.time_ms) if stored and isinstance(event, RunRequested) else None
    # Mostly the first event is the request; the leader is asked, for a start may be a moment old.
    start, s = 1, store.subjects
    while stored := await store.js.next(s.events_stream, s.events_of_run(run), start):
        event = decode_event(stored.data)
        if isinstance(event, RunRequested):
            return event, stored.time_ms
        start = stored.sequence + 1
    return None


# ---------------------------------------------------------------- leaves


async def _store(store: Store, run: str, verb: str, nonce: str, event: ClientEvent) -> None:
    subject = store.subjects.event(run)
    if isinstance(event, RunRequested) and event.lane and not event.is_scheduled:
        subject = store.subjects.request(run, lane_key(event.lane))
    await store.js.store(
        subject,
        msgspec.json.encode(event),
        message_id=request_id(run, verb, nonce),
        full_s=FULL_S,
    )
    if isinstance(event, RunRequested):
        store.started.append(run)


async def _existing(store: Store, run: str, wanted: RunRequested) -> bool:
    """True when this run was requested just so; raise ``RunConflict`` if otherwise."""
    document = await store.document(run)
    if document is None and await store.last_event(run) is None:
        return False
    found = await requested(store, run, document)
    if found is None:
        return False
    have = found[0]
    if have.workflow != wanted.workflow:
        raise RunConflict(
            run,
            f"exists as a run of workflow {have.workflow!r}, not {wanted.workflow!r}",
            "Choose another run id.",
        )
    if _value(have.input) != _value(wanted.input):
        raise RunConflict(
            run,
            f"of workflow {have.workflow!r} was started with another input",
            f"Choose another run id, or see the run: `treadle run show {run}`.",
        )
    if (have.lane, have.singleton) != (wanted.lane, wanted.singleton):
        raise RunConflict(
            run,
            f"was started {_in(have)}, not {_in(wanted)}",
            f"Choose another run id, or see the run: `treadle run show {run}`.",
        )
    if _when(have) != _when(wanted):
        raise RunConflict(
            run,
            f"was started to begin {begins_text(_when(have))}, not {begins_text(_when(wanted))}",
            "The time of a run cannot be changed, and its id is not free again after a cancel: "
            f"choose another run id, and cancel this one if it is in place of it: "
            f"`treadle run cancel {run}`.",
        )
    return True


def _when(request: RunRequested) -> When:
    return When(request.start_at_ms, request.start_after_ms)


def _in(request: RunRequested) -> str:
    policy = "" if request.singleton == "none" else f" as singleton ({request.singleton})"
    return f"in lane {request.lane!r}{policy}" if request.lane else "without a lane"


def _value(raw: msgspec.Raw) -> Any:
    return msgspec.json.decode(raw)
