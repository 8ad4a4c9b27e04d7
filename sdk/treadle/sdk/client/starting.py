"""The runs of a trigger that are started by whoever asks: by hand, by a delivery, by a request.

What is delivered to a trigger of a workflow that collects its starts is collected.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.sdk.client import requests
from treadle.sdk.client.collecting import Receipt, collect
from treadle.sdk.client.store import Store
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.errors import UnknownWorkflow, UserError
from treadle.sdk.singletons import placed
from treadle.sdk.tracing import calling
from treadle.sdk.triggers.naming import TRIGGER_KEY
from treadle.sdk.triggers.trigger import Trigger


async def start(
    store: Store,
    name: str,
    trigger: Trigger,
    raw: bytes,
    run: str | None,
    metadata: Mapping[str, str] | None = None,
) -> str:
    """Start a run of a trigger with this input, and return its id; one id is one run.

    Raise ``UnknownWorkflow``, ``InvalidPayload`` if the workflow does not take the input, and
    ``RunConflict`` if the id is that of a run with another one.
    """
    version, definition = await _version(store, trigger)
    return await _start(store, name, trigger, version, definition, raw, run, metadata)


async def deliver(
    store: Store, name: str, trigger: Trigger, raw: bytes, delivery: str
) -> str | Receipt:
    """Start the run of a delivery and return its id, or collect it; one id is one delivery."""
    version, definition = await _version(store, trigger)
    if definition is None or definition.collect is None:
        return await _start(store, name, trigger, version, definition, raw, delivery, None)
    return await collect_of(store, name, trigger, version, definition, raw, delivery)


async def collect_of(
    store: Store,
    name: str,
    trigger: Trigger,
    version: str,
    definition: WorkflowDefinition,
    raw: bytes,
    start_id: str,
    metadata: Mapping[str, str] | None = None,
) -> Receipt:
    """Collect what has come to a trigger; raise ``UserError`` if it has a lane."""
    if trigger.lane:
        raise UserError(
            f"trigger {name!r} has lane {trigger.lane!r}, and workflow {trigger.workflow!r} "
            "collects its starts, so that none of them has a place of its own. Create the trigger "
            "without a lane."
        )
    labels = {**trigger.metadata, TRIGGER_KEY: name, **(metadata or {})}
    return await collect(store, definition, version, raw, start_id, labels)


async def _version(store: Store, trigger: Trigger) -> tuple[str, WorkflowDefinition | None]:
    version = trigger.version or await store.latest(trigger.workflow)
    if version is None:
        raise UnknownWorkflow(trigger.workflow, list(await store.workflow_hashes()))
    return version, await store.definition(trigger.workflow, version)


async def _start(
    store: Store,
    name: str,
    trigger: Trigger,
    version: str,
    definition: WorkflowDefinition | None,
    raw: bytes,
    run: str | None,
    metadata: Mapping[str, str] | None,
) -> str:
    requests.check_input(definition, raw)
    place = placed(definition, raw, trigger.lane or None, None)
    origin = calling.origin(None)
    labels = {**trigger.metadata, TRIGGER_KEY: name, **(metadata or {})}
    begun = await requests.begin(store, trigger.workflow, version, raw, run, labels, place, origin)
    calling.link_to_run(origin)
    return begun.run
