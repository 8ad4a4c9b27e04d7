"""What a step was given and what it handed on, read from where it is stored.

A step's view says how it stands; this is what passed through it, for people who look into a run.
"""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.client.deciding import input_of
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.looking import Look, look
from treadle.sdk.client.planned import graph_of
from treadle.sdk.client.result import step_output
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView, StepView, no_step
from treadle.sdk.definition import MapStep, Step, WorkStep
from treadle.sdk.errors import InvariantError, StoredUnreadable
from treadle.sdk.gathering import Gatherer
from treadle.sdk.given import Graph
from treadle.sdk.messages import Ended, ItemFailure, StepGiven
from treadle.sdk.run import MapState, RunDocument, has_output, is_kept
from treadle.sdk.subjects import RegisterAddress

FAILED_ITEMS_MAX = 20
"""Failed items of a map that are told one by one: enough to see whether they have one cause."""


READS_AT_ONCE = 64
"""Registers asked for at once."""


class StepDetail(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step with what it was given and what it handed on."""

    run: str
    step: StepView
    input: msgspec.Raw | None = None
    """None before it has begun, or if it is gone."""
    output: msgspec.Raw | None = None
    """None unless it has completed with something to hand on, or if that is gone."""
    failed_items: tuple[ItemFailure, ...] = ()
    """Of a map that tolerates failures: the first of those that failed for good, by index."""
    failed_items_more: int = 0
    """How many failed besides."""
    gone: tuple[str, ...] = ()
    """What should be there and cannot be read, and why."""


class StepOutput(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The output of a step, if it is not too large."""

    size_bytes: int
    """As JSON; of a map that is not read, of its results."""
    value: msgspec.Raw | None = None
    """None if it is larger than was asked for."""


async def step_detail(store: Store, run: str, step_id: str, failed_max: int) -> StepDetail:
    """Return a step of a run; raise ``UserError`` if its workflow has none of that id."""
    found = await look(store, run)
    found = msgspec.structs.replace(found, view=await with_attempts(store, found))
    known = [step.id for step in found.view.steps]
    if step_id not in known:
        raise no_step(run, found.view.workflow, known, step_id)
    detail = StepDetail(run=run, step=found.view.step(step_id))
    document = found.document
    graph = await graph_of(store, document) if document else None
    if document is None or graph is None or step_id not in graph.steps:
        return detail
    return await _read(store, document, graph, detail, failed_max)


async def with_attempts(store: Store, found: Look) -> RunView:
    """Return the view of a run with the attempts that its ended steps took, or their last
    iterations: it is in their registers, which are read for it."""
    document, steps = found.document, found.definition.steps if found.definition else ()
    if document is None:
        return found.view
    over = {view.id for view in found.view.steps if view.status in ("completed", "failed")}
    wanted = [
        step
        for step in steps
        if isinstance(step, WorkStep)
        and not isinstance(step, MapStep)
        and step.id in over
        and not is_kept(document, step.id)
    ]
    gate = asyncio.Semaphore(READS_AT_ONCE)

    async def attempts_of(step: WorkStep) -> int:
        async with gate:
            try:
                held = await store.register(document.run, step.id, step.type, document.domain)
            except StoredUnreadable:
                return 0
        return held.register.attempt if held and isinstance(held.register, Ended) else 0

    counts = await asyncio.gather(*(attempts_of(step) for step in wanted))
    took = {step.id: count for step, count in zip(wanted, counts, strict=True)}
    views = (
        msgspec.structs.replace(view, attempt=took.get(view.id, view.attempt))
        for view in found.view.steps
    )
    return msgspec.structs.replace(found.view, steps=tuple(views))


async def outputs_of(store: Store, run: str, bytes_max: int) -> dict[str, StepOutput]:
    """Return what the steps of a run have handed on so far, by step; larger ones without value.

    What is gone, because its retention has passed, is left out.
    """
    document = (await look(store, run)).document
    graph = await graph_of(store, document) if document else None
    found: dict[str, StepOutput] = {}
    if document is None or graph is None:
        return found
    for step in graph.steps.values():
        if not has_output(document, step):
            continue
        state = document.maps.get(step.id)
        if state is not None and state.size_bytes > bytes_max:
            found[step.id] = StepOutput(size_bytes=state.size_bytes)
            continue
        try:
            output = await step_output(store, document, step)
        except (InvariantError, StoredUnreadable):
            continue
        size_bytes = len(bytes(output))
        value = output if size_bytes <= bytes_max else None
        found[step.id] = StepOutput(size_bytes=size_bytes, value=value)
    return found


async def _read(
    store: Store, document: RunDocument, graph: Graph, detail: StepDetail, failed_max: int
) -> StepDetail:
    step, gone = graph.steps[detail.step.id], list[str]()
    given = output = None
    failed: list[ItemFailure] = []
    state = document.maps.get(step.id)
    if detail.step.status not in ("waiting", "not_reached", "skipped"):
        try:
            given = await _given(store, document, graph, step)
        except (InvariantError, StoredUnreadable) as error:
            gone.append(f"its input: {error}")
    if has_output(document, step):
        try:
            output = await step_output(store, document, step)
        except (InvariantError, StoredUnreadable) as error:
            gone.append(f"its output: {error}")
    if isinstance(step, MapStep) and state is not None and state.failed:
        try:
            failed = await _failed(store, document, step, state, failed_max)
        except (InvariantError, StoredUnreadable) as error:
            gone.append(f"its failed items: {error}")
    return msgspec.structs.replace(
        detail,
        input=given,
        output=output,
        failed_items=tuple(failed),
        failed_items_more=max(0, state.failed - len(failed)) if state else 0,
        gone=tuple(gone),
    )


async def _given(
    store: Store, document: RunDocument, graph: Graph, step: Step
) -> msgspec.Raw | None:
    """Return what a step began with: of the first one of a fork, what that gave it."""
    sequence = document.fork.given.get(step.id, 0) if document.fork else 0
    if not sequence:
        return await input_of(store, document, graph, step)
    stored = await store.event(sequence)
    event = decode_event(stored.data) if stored else None
    if not isinstance(event, StepGiven):
        raise InvariantError(f"event {sequence}, with what the fork gave it, is gone")
    return event.input


async def _failed(
    store: Store, document: RunDocument, step: MapStep, state: MapState, most: int
) -> list[ItemFailure]:
    if not step.tolerated_failures:
        return []  # The first one is the failure of the step.
    stopped = {n for first, last in state.under_way for n in range(first, last + 1)}
    over = [number for number in range(state.next) if number not in stopped]
    map_ = RegisterAddress(document.domain, document.run, step.id, step.type)
    gatherer = Gatherer(store.js, store.subjects)
    return await gatherer.failures(map_, over, min(most, state.failed))
