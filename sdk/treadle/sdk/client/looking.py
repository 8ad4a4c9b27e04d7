"""One look at a run: its document, the registers of its live steps, and the view they make."""

from __future__ import annotations

import asyncio

import msgspec

from treadle.sdk.client import requests, resuming
from treadle.sdk.client.bounds import Stops
from treadle.sdk.client.following import kept_notes
from treadle.sdk.client.living import living
from treadle.sdk.client.planned import definition_of
from treadle.sdk.client.queueing import ahead_of
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import Held, RunView, damaged_note, of_document, of_request
from treadle.sdk.definition import WorkflowDefinition, WorkStep
from treadle.sdk.errors import StoredUnreadable, UnknownRun
from treadle.sdk.messages import WorkerPresence
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import MAIN_DOMAIN


class Look(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, and the view of it."""

    view: RunView
    document: RunDocument | None = None
    """None until an engine has taken the run."""
    registers: dict[str, Held] = {}
    """Of steps that are active, parked or cancelled."""
    presence: tuple[WorkerPresence, ...] = ()
    definition: WorkflowDefinition | None = None
    """With what the run's planners have planned; None if it is not registered."""
    stops: dict[str, Stops] = {}
    """What stops the parked loops again."""


async def look(store: Store, run: str) -> Look:
    """Look at a run; raise ``UnknownRun`` if there is none."""
    document = await requests.require(store, run)
    if document is None:
        found = await requests.requested(store, run, None)
        if found is None:  # Early signals for a run that nobody has started.
            raise UnknownRun(run)
        event, time_ms = found
        definition = await store.definition(event.workflow, event.definition)
        presence = tuple(await living(store, definition, MAIN_DOMAIN))
        view = of_request(run, event, time_ms, definition, presence)
        return Look(view=view, presence=presence, definition=definition)
    definition = await definition_of(store, document)
    presence = tuple(await living(store, definition, document.domain))
    registers, damaged = await _registers(store, document, definition)
    registers = await resuming.standing(store, document, registers)
    stops = await resuming.stops_of(store, registers)
    ahead = await ahead_of(store, document) if document.status == "queued" else None
    view = of_document(document, definition, registers, presence, ahead, stops)
    notes = tuple(damaged_note(run, error) for error in damaged)
    notes += await kept_notes(store, document, view.steps)
    view = msgspec.structs.replace(view, notes=(*notes, *view.notes)) if notes else view
    return Look(
        view=view,
        document=document,
        registers=registers,
        presence=presence,
        definition=definition,
        stops=stops,
    )


async def _registers(
    store: Store, document: RunDocument, definition: WorkflowDefinition | None
) -> tuple[dict[str, Held], tuple[StoredUnreadable, ...]]:
    """Return the registers of the steps under way, and what is wrong with the others."""
    wanted = [
        step
        for step in (definition.steps if definition else ())
        if isinstance(step, WorkStep)
        and (entry := document.steps.get(step.id)) is not None
        and entry.status in ("active", "parked", "cancelled")
    ]
    found = await asyncio.gather(
        *(store.register(document.run, step.id, step.type, document.domain) for step in wanted),
        return_exceptions=True,
    )
    registers: dict[str, Held] = {}
    damaged: tuple[StoredUnreadable, ...] = ()
    for step, held in zip(wanted, found, strict=True):
        if isinstance(held, Held):
            registers[step.id] = held
        elif isinstance(held, StoredUnreadable):
            if not document.is_terminal:
                damaged += (held,)
        elif held is not None:
            raise held
    return registers, damaged
