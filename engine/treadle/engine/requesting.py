"""Runs that triggers and collected starts ask for, each under the id that follows from them."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.store import Store
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.lanes import lane_key
from treadle.sdk.messages import MetadataValue, RunRequested
from treadle.sdk.singletons import Placed, placed
from treadle.sdk.subjects import Subjects, request_id
from treadle.sdk.tracing.calling import origin
from treadle.sdk.triggers.naming import TRIGGER_KEY
from treadle.sdk.triggers.trigger import Trigger


class Requests:
    """Requests runs of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects, store: Store) -> None:
        self._js = js
        self._subjects = subjects
        self._store = store

    async def is_known(self, run: str) -> bool:
        """Return whether a run was requested, or has begun."""
        return bool(await self._store.last_event(run) or await self._store.document(run))

    async def version(self, trigger: Trigger) -> str | None:
        """Return the version that the trigger's runs take; None if it is not registered."""
        return trigger.version or await self._store.latest(trigger.workflow)

    async def store(
        self,
        name: str,
        trigger: Trigger,
        run: str,
        version: str,
        definition: WorkflowDefinition | None,
        input: msgspec.Raw,
        metadata: Mapping[str, str],
    ) -> None:
        """Request a run. Requested twice, it is one run.

        Raise ``UserError`` if the input gives a singleton no key.
        """
        place = placed(definition, bytes(input), trigger.lane or None, None)
        labels = {**trigger.metadata, TRIGGER_KEY: name, **metadata}
        await self.store_at(place, trigger.workflow, run, version, input, labels)

    async def store_at(
        self,
        place: Placed,
        workflow: str,
        run: str,
        version: str,
        input: msgspec.Raw,
        metadata: Mapping[str, MetadataValue],
    ) -> None:
        """Request a run that has its place. Requested twice, it is one run."""
        request = RunRequested(
            workflow=workflow,
            definition=version,
            input=input,
            metadata=metadata,
            lane=place.lane,
            singleton=place.singleton,
            places=place.places,
            trace=origin(None).ref,
        )
        subject = self._subjects.event(run)
        if place.lane:
            subject = self._subjects.request(run, lane_key(place.lane))
        data = msgspec.json.encode(request)
        await self._js.store(subject, data, message_id=request_id(run, "start", TRIGGER_KEY))
