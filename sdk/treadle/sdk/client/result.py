"""The end of a run: its result, or the error that says why there is none."""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.planned import definition_of, graph_of
from treadle.sdk.client.store import Store
from treadle.sdk.definition import (
    AgentLoopStep,
    MapStep,
    Step,
    SubWorkflowStep,
    WaitStep,
    WorkStep,
)
from treadle.sdk.errors import InvariantError, RunCancelled, RunFailed
from treadle.sdk.gathering import Gatherer
from treadle.sdk.given import Graph, given_by
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.messages import Ended, Failure, MapOutput
from treadle.sdk.outcome import outcome_of
from treadle.sdk.plans import result_of
from treadle.sdk.run import RunDocument, is_copied, kept_output
from treadle.sdk.shape import Shape, assembled, leaves
from treadle.sdk.spending import MAX_COST, MAX_TOKENS, RUN_BUDGET, SPENDING_REASONS
from treadle.sdk.subjects import RegisterAddress

_BOUNDS = {MAX_TOKENS: "its bound on tokens", MAX_COST: "max_cost_usd"}
BETWEEN_ITERATIONS = ("max_iterations", *SPENDING_REASONS)
"""Bounds that are reached between two iterations: there is none that has failed."""
_UNKNOWN_CAUSE = Failure("unknown", "the run's document names no cause")


async def failure_of(store: Store, document: RunDocument) -> RunFailed | RunCancelled | None:
    """Return the error that a run's end means; None for a completed or a live run."""
    failure = document.failure or _UNKNOWN_CAUSE
    if document.status == "cancelled":
        return RunCancelled(document.run, failure.message)
    if document.status != "failed":
        return None
    entry = document.steps.get(document.failed_step)
    iteration = None
    if entry is not None:
        definition = await definition_of(store, document)
        steps = definition.steps if definition else ()
        plain = {step.id for step in steps if not isinstance(step, AgentLoopStep)}
        is_between = failure.type in BETWEEN_ITERATIONS
        is_plain = document.failed_step in plain
        iteration = None if is_plain or is_between else entry.iterations
    return RunFailed(document.run, document.failed_step, iteration, failure, hint_of(document))


async def output_of(store: Store, document: RunDocument) -> msgspec.Raw:
    """Return the JSON of a completed run's result: see ``outcome.py``."""
    graph = await graph_of(store, document)
    if graph is None:
        raise InvariantError(
            f"run {document.run!r} is completed, and version {document.definition} of its "
            f"workflow {document.workflow!r} is gone"
        )
    ends, is_single = outcome_of(graph.own, document)
    shapes = {step.id: result_of(graph.plans, document, step.id) for step in ends}
    return await put_together(store, document, graph, shapes[ends[0].id] if is_single else shapes)


async def put_together(
    store: Store, document: RunDocument, graph: Graph, shape: Shape
) -> msgspec.Raw:
    """Return the JSON of what is put together from the outputs of steps."""

    async def value(leaf: str) -> bytes:
        given = given_by(graph, leaf)
        return given or bytes(await step_output(store, document, graph.steps[leaf]))

    names = list(leaves(shape))
    values = await asyncio.gather(*(value(name) for name in names))
    return msgspec.Raw(assembled(shape, dict(zip(names, values, strict=True))))


async def step_output(store: Store, document: RunDocument, step: Step) -> msgspec.Raw:
    """Return the output of a step that is over; null for one that has none to hand on.

    Raises ``InvariantError`` if what has to be there is gone.
    """
    if (kept := kept_output(document, step)) is not None:
        return msgspec.Raw(kept)
    if isinstance(step, WaitStep | SubWorkflowStep) or is_copied(document, step):
        entry = document.steps[step.id]
        stored = await store.event(int(entry.event[1:]))
        event = decode_event(stored.data) if stored else None
        if stored is not None and isinstance(event, Carrier):
            return handed_on(event, stored.time_ms)
    elif isinstance(step, MapStep):
        map_ = RegisterAddress(document.domain, document.run, step.id, step.type)
        state = document.maps[step.id]
        where = MapOutput(state.chunks, state.items, step.tolerated_failures > 0)
        return msgspec.Raw(await Gatherer(store.js, store.subjects).output(map_, where))
    elif isinstance(step, WorkStep):
        held = await store.register(document.run, step.id, step.type, document.domain)
        if held is not None and isinstance(held.register, Ended):
            return held.register.output
    raise InvariantError(
        f"step {step.id!r} of run {document.run!r} is completed, and its output is gone"
    )


def hint_of(document: RunDocument) -> str:
    """Return what to do about the failure of a run."""
    failure = document.failure
    see = f"See each attempt: `treadle run history {document.run}`."
    if failure is None or document.failed_step == "":
        return see
    if failure.type == RUN_BUDGET:
        return (
            f"{see} Raise the budget of workflow {document.workflow!r}, or of the one above that "
            'shares it; with on_limit="park" a run can be resumed with more.'
        )
    if failure.type in ("max_iterations", "max_duration", *SPENDING_REASONS):
        bound = _BOUNDS.get(failure.type, failure.type)
        return (
            f'{see} Raise {bound} of the step, or give it on_limit="park" so that a run '
            "can be resumed with a raised bound."
        )
    return see
