"""Who serves a run: what processes say of themselves, and what the server sees of them.

A process refreshes its record in the store; while the store is full, that is refused and the record
expires. So one that seems to be missing is looked for among those who pull: the server knows them.
"""

from __future__ import annotations

import asyncio

from treadle.sdk.client.store import Store
from treadle.sdk.definition import TypedStep, WorkflowDefinition
from treadle.sdk.messages import WorkerPresence

TYPES_ASKED_MAX = 64
"""Task types without a recorded worker that are asked about, of one workflow."""
UNRECORDED = "unrecorded"
"""Incarnation of a process that the server sees and that has no record."""


async def living(
    store: Store, definition: WorkflowDefinition | None, domain: str
) -> list[WorkerPresence]:
    """Return the processes that are alive, as far as they matter to runs of a workflow."""
    found = await store.presence()
    if not any(process.role == "engine" for process in found) and await is_engine_pulling(store):
        found.append(WorkerPresence(incarnation=UNRECORDED, role="engine"))
    served = {name for process in found for name in process.types}
    steps = definition.steps if definition else ()
    wanted = {step.type for step in steps if isinstance(step, TypedStep)}
    missing = sorted(wanted - served)[:TYPES_ASKED_MAX]
    s = store.subjects
    pulled = await asyncio.gather(
        *(store.is_pulled(s.steps_stream, s.worker_consumer(each, domain)) for each in missing)
    )
    types = tuple(each for each, yes in zip(missing, pulled, strict=True) if yes)
    if types:
        found.append(WorkerPresence(incarnation=UNRECORDED, types=types, domain=domain))
    return found


async def is_engine_pulling(store: Store) -> bool:
    """Return whether the server sees an engine that asks for events."""
    s = store.subjects
    return await store.is_pulled(s.events_stream, s.engine_consumer(0))
