"""A run made of another one: everything is read, then copied, and the request comes last.

    read the source ── what is gone? say so, nothing is stored ── copies ── signals ── the request

The copies are in the new run's own log, so that nothing of the source is asked for again. A client
that dies on the way has requested nothing; the same call again stores the copies anew.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from treadle.sdk import payload, spending
from treadle.sdk.cancel_on import is_cancel_id
from treadle.sdk.client import requests
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.fork_plan import kept_steps, repeated_steps
from treadle.sdk.client.fork_wanted import Version, Wanted, check_input_of, is_same, value
from treadle.sdk.client.planned import graph_of
from treadle.sdk.client.result import put_together, step_output
from treadle.sdk.client.rewinding import Beginning, beginning_of
from treadle.sdk.client.store import FULL_S, Store
from treadle.sdk.definition import AgentLoopStep, EventStep, PlannerStep, WorkStep
from treadle.sdk.errors import InvariantError, RunConflict, UnknownWorkflow, UserError
from treadle.sdk.given import Graph, shape_of
from treadle.sdk.ids import check_id, new_nonce
from treadle.sdk.lanes import lane_key
from treadle.sdk.messages import (
    ClientEvent,
    EventMatched,
    Fork,
    Kept,
    OutcomeKept,
    RecordKept,
    RunRequested,
    SignalReceived,
    StepGiven,
)
from treadle.sdk.planned import Extended, extended
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.singletons import Placed, placed_again
from treadle.sdk.spending import RUN_BUDGET
from treadle.sdk.subjects import request_id
from treadle.sdk.tracing.calling import Origin

COPIES_AT_ONCE_MAX = 32
"""Enough to hide the round trips of a wide run, without flooding the connection."""
COPY_ROOM_BYTES = 16 * 1024
"""Of the largest message, for what stands beside the output in a copy: a failure with its text."""
_ID_CHARS_MAX = 64


class Made(NamedTuple):
    """The run that was made of another one."""

    run: str
    is_new: bool
    """False if it was there, made in the same way."""
    repeated: tuple[str, ...] = ()
    """Of a new one: the steps that it executes again because they were undone."""


class Graphs(NamedTuple):
    """The steps of a run, and those of the run that is made of it."""

    old: Graph
    new: Graph
    """The version that the new run takes, with what the planners have planned that it keeps."""
    version: str


class _Source(NamedTuple):
    """What was read of the run that is forked."""

    document: RunDocument
    request: RunRequested
    old: Graph
    new: Graph
    version: str


async def fork(store: Store, run: str, wanted: Wanted, origin: Origin) -> Made:
    """Request a run made of another one; the same request again is that run.

    Raises ``RunConflict`` if what it needs is gone, or not there yet.
    """
    source = await _source(store, run, wanted)
    _check(source, wanted)
    new_run = wanted.id or (retry_id(run) if wanted.is_retry else _fork_id(run))
    start = wanted.step or (source.document.failed_step if wanted.is_retry else "")
    is_whole = not wanted.step and not wanted.is_retry
    entries: dict[str, StepEntry] = {}
    if not is_whole:
        entries = kept_steps(source.old, source.new, source.document, wanted.step)
    made = await _beginning(store, source, start, wanted, entries) if start else None
    iteration = made.given.iteration if made is not None and wanted.iteration >= 0 else -1
    forked = Fork(
        run,
        wanted.step,
        iteration,
        source.document.trace,
        is_retry=wanted.is_retry,
        has_input=wanted.has_input,
        nonce=new_nonce(),
        since_ms=source.document.events_since_ms,
        cancelled_by=await _cancelled_by(store, source.document),
    )
    raw = _input(source, wanted) if is_whole and wanted.has_input else source.request.input
    place = _place(source, raw)
    request = msgspec.structs.replace(
        source.request,
        definition=source.version,
        input=raw,
        lane=place.lane,
        singleton=place.singleton,
        places=place.places,
        trace=origin.ref,
        caller=origin.caller,
        trace_state=origin.state,
        parent=None,  # The step that started the source is over, or waits for that run.
        start_at_ms=0,
        start_after_ms=0,
        fork=forked,
    )
    given_input = made.given.input if made is not None and wanted.has_input else None
    if await _is_there(store, new_run, request, given_input):
        return Made(new_run, is_new=False)
    outcomes = await _outcomes(store, source, entries)
    kept = await _stored(store, new_run, outcomes)
    given = await _given(store, new_run, made) if made is not None else {}
    for signal in await _signals(store, source.document, forked.nonce):
        await _put(store, new_run, signal, signal.id)
    forked = msgspec.structs.replace(forked, kept=kept, given=given)
    await _put(store, new_run, msgspec.structs.replace(request, fork=forked), "start")
    await _is_there(store, new_run, request, given_input)
    again = () if is_whole else repeated_steps(*source[2:4], source.document, wanted.step)
    return Made(new_run, is_new=True, repeated=again)


async def repeated(store: Store, run: str, wanted: Wanted) -> tuple[str, ...]:
    """Return the steps that a fork executes again because they were undone; see ``fork_plan``."""
    document = await requests.require(store, run)
    if document is None or not (wanted.step or wanted.is_retry):
        return ()
    graphs = await graphs_of(store, document, wanted.version)
    return repeated_steps(graphs.old, graphs.new, document, wanted.step)


# ---------------------------------------------------------------- the source


async def _source(store: Store, run: str, wanted: Wanted) -> _Source:
    document = await requests.require(store, run)
    found = await requests.requested(store, run, document)
    if document is None or found is None:
        what = "has not been taken by an engine yet" if document is None else "has lost its request"
        raise RunConflict(
            run,
            f"{what}, so there is nothing to start from",
            f"See it: `treadle run show {run}`.",
        )
    graphs = await graphs_of(store, document, wanted.version)
    return _Source(document, found[0], *graphs)


async def graphs_of(store: Store, run: RunDocument, wanted: Version) -> Graphs:
    """Return the steps of a run and of one that is made of it; raise ``UnknownWorkflow``."""
    old = await graph_of(store, run)
    version, new = run.definition, old
    if wanted == "latest":
        version = await store.latest(run.workflow) or version
        new = await _graph(store, run, old, version) if old else None
    if old is None or new is None:
        raise UnknownWorkflow(f"{run.workflow}@{version}", [])
    return Graphs(old, new, version)


async def _graph(store: Store, run: RunDocument, old: Graph, version: str) -> Graph | None:
    """Return another version with the plans of the planners that it has unchanged."""
    definition = await store.definition(run.workflow, version)
    if definition is None:
        return None
    known: dict[str, bytes] = {}
    found = Extended(definition, {})
    while new := [
        step
        for step in found.definition.steps
        if isinstance(step, PlannerStep)
        and step.id not in known
        and step.id in old.plans
        and step == old.steps[step.id]
    ]:
        for step in new:
            known[step.id] = bytes(await step_output(store, run, step))
        found = extended(definition, known)
    return Graph(found.definition, found.plans)


def _check(source: _Source, wanted: Wanted) -> None:
    """Raise ``RunConflict`` or ``UserError`` for what cannot be done."""
    run = source.document
    if wanted.is_retry and run.status not in ("failed", "cancelled"):
        raise RunConflict(
            run.run,
            f"is {run.status}, and only a run that has failed or was cancelled is tried again",
            f"Fork it from a step: `treadle run fork {run.run} --from-step STEP`.",
        )
    steps = source.new.steps
    if wanted.step and wanted.step not in steps:
        have = ", ".join(map(repr, steps))
        raise UserError(
            f"workflow {run.workflow!r} has no step {wanted.step!r} (it has {have}). Fork from one "
            "of them."
        )
    step = steps.get(wanted.step)
    if wanted.iteration >= 0 and not isinstance(step, AgentLoopStep):
        raise UserError(
            f"step {wanted.step!r} of workflow {run.workflow!r} is no agent loop, so it has no "
            f"iteration {wanted.iteration}. Leave the iteration out, or name a loop."
        )
    if step is not None and wanted.has_input:
        check_input_of(step)


def _input(source: _Source, wanted: Wanted) -> msgspec.Raw:
    raw = payload.encode(f"input of workflow {source.document.workflow!r}", wanted.input)
    requests.check_input(source.new.own, raw)
    return msgspec.Raw(raw)


def _place(source: _Source, raw: msgspec.Raw) -> Placed:
    """Return where the new run queues."""
    have = source.request
    place = Placed(have.lane, have.singleton, places=have.places)
    return placed_again(source.old.own, source.new.own, bytes(raw), place)


async def _beginning(
    store: Store,
    source: _Source,
    start: str,
    wanted: Wanted,
    entries: Mapping[str, StepEntry],
) -> Beginning | None:
    """Return what the first step begins with; None if it is what it waited for."""
    step = source.new.steps.get(start)
    begun = None
    if isinstance(step, AgentLoopStep):
        iteration = wanted.iteration
        if wanted.is_retry and _is_as_it_was(source, step, entries):
            iteration = source.document.steps[start].iterations
        if iteration > 0 or (iteration == 0 and wanted.is_retry):
            begun = await beginning_of(
                store, source.document, start, iteration, is_retry=wanted.is_retry
            )
            _check_bounds(source, step, begun.given)
            if not iteration:
                # What it waited for is in no verdict.
                begun = begun.with_input(await _first_input(store, source, step))
    if wanted.has_input:
        raw = msgspec.Raw(payload.encode(f"input of step {start!r}", wanted.input))
        begun = (begun or Beginning(StepGiven(step=start))).with_input(raw)
    return begun


def _is_as_it_was(source: _Source, step: AgentLoopStep, entries: Mapping[str, StepEntry]) -> bool:
    """True if a loop can go on where it failed: nothing before it begins again."""
    handles = step.id in source.old.handles or step.id in source.old.compensations
    is_same = step == source.old.steps.get(step.id)
    return not handles and is_same and entries.keys() >= set(step.after)


async def _first_input(store: Store, source: _Source, step: AgentLoopStep) -> msgspec.Raw:
    """Return what a step is given that nothing came before: as an engine puts it together."""
    shape = shape_of(source.old, source.document, step)
    if shape is None:
        return source.request.input
    return await put_together(store, source.document, source.old, shape)


def _check_bounds(source: _Source, step: AgentLoopStep, given: StepGiven) -> None:
    reason = spending.reached(spending.limits_of(step), given.spent)
    if given.iteration >= step.max_iterations:
        reason = "max_iterations"
    elif not reason and spending.reached(spending.limits_of(source.new.own), given.spent):
        reason = RUN_BUDGET
    if reason:
        run = source.document.run
        raise RunConflict(
            run,
            f"has used up the {reason} of step {step.id!r} by iteration {given.iteration}, and "
            "would stop there again",
            "Register the workflow with a raised bound and take its newest version, or fork from "
            "an earlier iteration.",
        )


# ---------------------------------------------------------------- what is taken over


async def _output(store: Store, source: _Source, step_id: str) -> msgspec.Raw:
    try:
        return await step_output(store, source.document, source.old.steps[step_id])
    except InvariantError as exc:
        raise RunConflict(
            source.document.run,
            f"has lost the output of step {step_id!r}: its retention has passed",
            f"Start the workflow again: `treadle run start {source.document.workflow}`.",
        ) from exc


async def _outcomes(
    store: Store, source: _Source, entries: Mapping[str, StepEntry]
) -> list[OutcomeKept]:
    gate = asyncio.Semaphore(COPIES_AT_ONCE_MAX)

    async def outcome(step_id: str, entry: StepEntry) -> OutcomeKept:
        assert entry.status in ("completed", "skipped", "failed")
        async with gate:
            output = await _output(store, source, step_id)
        most = store.js.connection.max_payload_bytes - COPY_ROOM_BYTES
        if len(bytes(output)) > most:
            raise RunConflict(
                source.document.run,
                f"has an output of step {step_id!r} of {len(bytes(output))} bytes, and a copy has "
                f"at most {most}, because it is one message",
                f"Fork from step {step_id!r}, which then is executed again.",
            )
        step = source.old.steps[step_id]
        return OutcomeKept(
            step=step_id,
            outcome=entry.status,
            type=step.type if isinstance(step, WorkStep) and entry.status != "skipped" else "",
            output=output,
            failure=entry.failure,
            iterations=entry.iterations,
            started_ms=entry.started_ms,
            ended_ms=entry.ended_ms,
            published=entry.position if isinstance(step, EventStep) else 0,
        )

    return list(await asyncio.gather(*(outcome(*item) for item in entries.items())))


async def _cancelled_by(store: Store, run: RunDocument) -> tuple[int, ...]:
    """Return the published events that a cancelled run was told of as such that cancel it."""
    before = run.cancelled_before_by
    if run.status != "cancelled":
        return before
    told = [decode_event(stored.data) async for stored in store.events(run.run)]
    cancels = (e for e in told if isinstance(e, EventMatched) and is_cancel_id(e.step))
    return tuple({*before, *(event.published for event in cancels)})


async def _signals(store: Store, run: RunDocument, nonce: str) -> list[SignalReceived]:
    """Return the signals that no step of the source has consumed: the new run has them too."""
    found: list[SignalReceived] = []
    for sequence in sorted(each for waiting in run.signals.values() for each in waiting):
        stored = await store.event(sequence)
        event = decode_event(stored.data) if stored else None
        if isinstance(event, SignalReceived):
            signal_id = event.id or f"{run.run[:40]}-{sequence}"
            found.append(msgspec.structs.replace(event, id=signal_id, fork=nonce))
    return found


# ---------------------------------------------------------------- the new run


async def _stored(store: Store, run: str, outcomes: list[OutcomeKept]) -> dict[str, int]:
    gate = asyncio.Semaphore(COPIES_AT_ONCE_MAX)

    async def put(outcome: OutcomeKept) -> int:
        async with gate:
            return await _put(store, run, outcome, outcome.step)

    sequences = await asyncio.gather(*(put(each) for each in outcomes))
    return {each.step: sequence for each, sequence in zip(outcomes, sequences, strict=True)}


async def _given(store: Store, run: str, made: Beginning) -> dict[str, int]:
    records = [
        await _put(store, run, RecordKept(step=made.given.step, record=record), f"record-{number}")
        for number, record in enumerate(made.records)
    ]
    given = msgspec.structs.replace(made.given, records=tuple(records))
    return {given.step: await _put(store, run, given, "given")}


async def _put(store: Store, run: str, event: ClientEvent | Kept, verb: str) -> int:
    subject = store.subjects.event(run)
    if isinstance(event, RunRequested) and event.lane:
        subject = store.subjects.request(run, lane_key(event.lane))
    return await store.js.store(
        subject,
        msgspec.json.encode(event),
        message_id=request_id(run, verb, new_nonce()),
        full_s=FULL_S,
    )


async def _is_there(
    store: Store, run: str, wanted: RunRequested, given_input: msgspec.Raw | None
) -> bool:
    """True if the run was requested just so; raise ``RunConflict`` if it is another one."""
    document = await store.document(run)
    found = await requests.requested(store, run, document)
    if found is None:
        return False
    have = found[0]
    assert wanted.fork is not None
    same = is_same(have, wanted)
    if same and have.fork is not None and given_input is not None:
        stored = await store.event(have.fork.given.get(wanted.fork.step, 0))
        given = decode_event(stored.data) if stored else None
        same = isinstance(given, StepGiven) and value(given.input) == value(given_input)
    if not same:
        raise RunConflict(
            run,
            f"exists, and was not made of run {wanted.fork.run!r} in this way",
            "Choose another run id.",
        )
    return True


def retry_id(run: str) -> str:
    """Return the id of the retry of a run, if nobody chooses one: always the same."""
    match = re.fullmatch(r"(.+)-r(\d{1,6})", check_id("run id", run))
    base, number = (match[1], int(match[2])) if match else (run, 0)
    return _with(base, f"-r{number + 1}")


def again_id(run: str, count: int) -> str:
    """Return the id of a further retry of a run, which is that of no retry of a retry."""
    return _with(check_id("run id", run), f"-again{count}")


def _fork_id(run: str) -> str:
    return _with(check_id("run id", run), f"-f{new_nonce()[-8:]}")


def _with(run: str, suffix: str) -> str:
    """Return an id that is short enough: of two long ones that begin alike, another one each."""
    room = _ID_CHARS_MAX - len(suffix)
    if len(run) <= room:
        return f"{run}{suffix}"
    mark = f"{zlib.crc32(run.encode()):08x}"
    return f"{run[: room - len(mark) - 1]}-{mark}{suffix}"
