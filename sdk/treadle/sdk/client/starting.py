"""The runs of a trigger that are started by whoever asks: by hand, by a delivery, by a request."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.sdk.client import requests
from treadle.sdk.client.store import Store
from treadle.sdk.errors import UnknownWorkflow
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
    version = trigger.version or await store.latest(trigger.workflow)
    if version is None:
        raise UnknownWorkflow(trigger.workflow, list(await store.workflow_hashes()))
    definition = await store.definition(trigger.workflow, version)
    requests.check_input(definition, raw)
    place = placed(definition, raw, trigger.lane or None, None)
    origin = calling.origin(None)
    labels = {**trigger.metadata, TRIGGER_KEY: name, **(metadata or {})}
    run = await requests.start(store, trigger.workflow, version, raw, run, labels, place, origin)
    calling.link_to_run(origin)
    return run
