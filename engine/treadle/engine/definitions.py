"""Definitions by content hash: immutable, so a plan is kept once it was read."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from treadle.engine.core.plan import Plan
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.definition import WorkflowDefinition
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects

PLANS_MAX = 4096

_decoder = msgspec.json.Decoder(WorkflowDefinition)


class Definitions:
    """The registered definitions, as plans."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._plans: OrderedDict[tuple[str, str], Plan] = OrderedDict()

    async def plan(self, workflow: str, content_hash: str) -> Plan | None:
        """Return the plan of one version of a workflow; None if it is not registered.

        Raise ``StoredUnreadable`` if what is stored there is no definition.
        """
        key = (workflow, content_hash)
        plan = self._plans.get(key)
        if plan is not None:
            return plan
        stored = await self._js.last(
            self._subjects.workflows_stream,
            self._subjects.workflow_version(workflow, content_hash),
        )
        if stored is None:
            return None
        definition = read(_decoder, stored)
        plan = self._plans[key] = Plan(definition, content_hash)
        if len(self._plans) > PLANS_MAX:
            self._plans.popitem(last=False)
        return plan
