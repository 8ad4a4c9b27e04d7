"""The definition of a run, with what its planners have planned, as a client reads it."""

from __future__ import annotations

import asyncio

from treadle.sdk.client.store import Store
from treadle.sdk.definition import PlannerStep, WorkflowDefinition
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.given import Graph
from treadle.sdk.messages import Ended
from treadle.sdk.planned import Extended, extended
from treadle.sdk.run import RunDocument


async def definition_of(store: Store, run: RunDocument) -> WorkflowDefinition | None:
    """Return a run's definition, extended by its plans; None if it is not registered."""
    graph = await graph_of(store, run)
    return graph.definition if graph else None


async def graph_of(store: Store, run: RunDocument) -> Graph | None:
    """Return a run's steps, those of its plans included; a plan that cannot be read is left out.

    None if the definition is not registered.
    """
    definition = await store.definition(run.workflow, run.definition)
    if definition is None:
        return None
    found, known = Extended(definition, {}), dict[str, bytes]()
    while new := [
        step
        for step in found.definition.steps
        if isinstance(step, PlannerStep) and step.id not in known and _has_planned(run, step)
    ]:
        outputs = await asyncio.gather(*(_output(store, run, step) for step in new))
        known |= {step.id: output for step, output in zip(new, outputs, strict=True)}
        found = extended(definition, {name: output for name, output in known.items() if output})
    return Graph(found.definition, found.plans)


def _has_planned(run: RunDocument, step: PlannerStep) -> bool:
    entry = run.steps.get(step.id)
    return entry is not None and entry.status == "completed"


async def _output(store: Store, run: RunDocument, step: PlannerStep) -> bytes:
    """Return a planner's output; nothing if it cannot be read."""
    try:
        held = await store.register(run.run, step.id, step.type, run.domain)
    except StoredUnreadable:
        return b""
    return bytes(held.register.output) if held and isinstance(held.register, Ended) else b""
