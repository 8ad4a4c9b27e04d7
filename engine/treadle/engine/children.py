"""Children: runs that steps start, told of their parents' ends, and parents told of theirs.

    a step that starts a run is active ──> request it, unless that was done
    it was stopped ──────────────────────> tell the run that nobody waits for it
    a run with a parent has ended ───────> tell the step that waits for it

Each is an effect of a stored document, driven again whenever that is met. Nothing here decides: a
request for a step that is over makes a run that is cancelled at once (``standing``), the end of a
run of an earlier attempt changes nothing in the parent.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict

import msgspec

from treadle.engine.core import children
from treadle.engine.core.effects import CancelChild
from treadle.engine.core.facts import ChildStarted
from treadle.engine.core.plan import Plan
from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents
from treadle.engine.floor import is_request
from treadle.engine.inputs import Inputs
from treadle.engine.ledger import Ledger
from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.children import CHILD_DEPTH_MAX, ParentRun
from treadle.sdk.client.requests import check_input
from treadle.sdk.client.store import Store
from treadle.sdk.definition import SubWorkflowStep
from treadle.sdk.errors import InvalidPayload, StoredUnreadable, UserError
from treadle.sdk.lanes import lane_key
from treadle.sdk.messages import (
    NO_RAW,
    ChildEnded,
    Failure,
    ParentEnded,
    RunRequested,
)
from treadle.sdk.run import RunDocument, child_of
from treadle.sdk.singletons import Placed, placed
from treadle.sdk.subjects import Subjects, request_id
from treadle.sdk.tracing.ids import child_ref, parse_ref, step_span, traceparent

LOOKS_S = (0.05, 0.2, 0.75)
"""Pauses between looks for what has to be there: a deposed leader may answer for a moment."""
REQUESTED_MAX = 20_000
"""Children an engine remembers to be requested; of others it looks whether they are."""


class Children:
    """Starts, ends and hears the runs of steps."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        documents: Documents,
        definitions: Definitions,
        inputs: Inputs,
        ledger: Ledger,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._documents = documents
        self._definitions = definitions
        self._inputs = inputs
        self._ledger = ledger
        self._store = Store(js, subjects)
        self._requested: OrderedDict[str, None] = OrderedDict()

    # ---------------------------------------------------------------- a child's beginning

    async def start(self, plan: Plan, run: RunDocument, step_id: str) -> ChildStarted | None:
        """Request the run of an active step; return what its document has to hear at once."""
        step = plan.steps[step_id]
        assert isinstance(step, SubWorkflowStep)
        child, attempt = child_of(run, step_id), run.steps[step_id].attempt
        if child not in self._requested:
            if not await self._is_requested(child):
                failure = await self._request(plan, run, step, child)
                if failure is not None:
                    return ChildStarted(step_id, attempt, failure)
                failpoints.reach("engine.child-requested")
            self._requested[child] = None
            if len(self._requested) > REQUESTED_MAX:
                self._requested.popitem(last=False)
        return ChildStarted(step_id, attempt) if step.detached else None

    async def _is_requested(self, child: str) -> bool:
        if await self._store.last_event(child) is None:
            return await self._store.document(child) is not None
        # A parent's end may have been told to a run that nobody has requested.
        async for stored in self._store.events(child):
            if is_request(stored.data):
                return True
        return False

    async def _request(
        self, plan: Plan, run: RunDocument, step: SubWorkflowStep, child: str
    ) -> Failure | None:
        """Request the run; return why there can be none."""
        parent = children.link(run, step)
        if parent.depth > CHILD_DEPTH_MAX:
            return _refused(
                "too_deeply_nested",
                f"workflow {step.workflow!r} would be {parent.depth} levels below run "
                f"{parent.root!r}, and {CHILD_DEPTH_MAX} are allowed, because a workflow that "
                "starts itself without an end would fill the store. Loop in an agent_loop, or "
                "give the step a condition that ends it.",
            )
        version = await self._latest(step.workflow)
        if version is None:
            return _refused(
                "unknown_workflow",
                f"workflow {step.workflow!r} of step {step.id!r} is not registered. Register it, "
                "and start the run again.",
            )
        found = await self._definitions.plan(step.workflow, version)
        try:
            raw = await self._inputs.whole(plan, run, step)
            definition = found.definition if found else None
            check_input(definition, raw)
            place = placed(definition, raw, None, None)
            is_behind = bool(place.lane) and not step.detached
            if is_behind and (behind := await self._in_lane(run, place.lane)):
                return _refused(
                    "waits_for_itself",
                    f"workflow {step.workflow!r} might be queued in lane {place.lane!r} behind "
                    f"run {behind!r}, which waits for it. Give it another key, or let the step be "
                    "detached.",
                )
            await self._publish(run, parent, step, child, version, raw, place)
        except InvalidPayload as exc:
            return _refused("InvalidPayload", str(exc))
        except UserError as exc:
            return _refused("UserError", str(exc))
        return None

    async def _in_lane(self, run: RunDocument, lane: str) -> str:
        """Return the run in a lane that this one is, or that waits for it; empty if none is."""
        above: RunDocument | None = run
        while above is not None and above.lane != lane:
            link = above.parent
            if link is None or link.detached:
                return ""
            version = await self._documents.read(link.run)
            above = version.run if version else None
        return above.run if above is not None else ""

    async def _publish(
        self,
        run: RunDocument,
        parent: ParentRun,
        step: SubWorkflowStep,
        child: str,
        version: str,
        raw: bytes,
        place: Placed,
    ) -> None:
        ref = parse_ref(run.trace)
        caller = trace = ""
        if ref is not None:
            span = step_span(ref.trace_id, step.id)
            caller = traceparent(ref.trace_id, span, is_sampled=ref.is_sampled)
            trace = str(child_ref(ref, step.id, parent.attempt))
        request = RunRequested(
            workflow=step.workflow,
            definition=version,
            input=msgspec.Raw(raw),
            trace=trace,
            caller=caller,
            parent=parent,
            lane=place.lane,
            singleton=place.singleton,
            places=place.places,
        )
        subject = self._subjects.event(child, run.domain)
        if place.lane:
            subject = self._subjects.request(child, lane_key(place.lane), run.domain)
        await self._js.store(
            subject,
            msgspec.json.encode(request),
            message_id=request_id(child, "start", "parent"),
        )

    async def _latest(self, workflow: str) -> str | None:
        for pause_s in (*LOOKS_S, None):
            version = await self._store.latest(workflow)
            if version is not None or pause_s is None:
                return version
            await asyncio.sleep(pause_s)
        return None

    async def is_orphaned(self, child: str, link: ParentRun) -> bool:
        """Return whether the step that asked for a run waits for it no more, or is gone.

        A document that is too old to say, or not there, is looked at again.
        """
        if link.detached:
            return False
        for pause_s in (*LOOKS_S, None):
            try:
                version = await self._documents.read(link.run)
            except StoredUnreadable:
                return False  # Its own end is about to be told.
            is_awaited = children.awaits(version.run, child, link) if version else None
            if is_awaited is not None:
                return not is_awaited
            if pause_s is not None:
                await asyncio.sleep(pause_s)
        return True

    # ---------------------------------------------------------------- a parent's end

    async def cancel(self, run: RunDocument, command: CancelChild) -> None:
        """Tell a child that its parent has ended, unless it is over or there is none."""
        attempt = command.attempt or 1
        while True:
            child = child_of(run, command.step, attempt)
            is_there = await self._tell_child(run, child, command.reason)
            if command.attempt or not is_there:
                return
            attempt += 1  # Which one is under way is not known: none is behind one that is not.

    async def _tell_child(self, run: RunDocument, child: str, reason: str) -> bool:
        try:
            found = await self._documents.read(child)
        except StoredUnreadable:
            found = None
        if found is None and not await self._is_requested(child):
            return False  # One that is requested from now on finds that nobody waits for it.
        if found is None or not (found.run.is_terminal or found.run.undoing):
            await self._js.store(
                self._subjects.event(child, run.domain),
                msgspec.json.encode(ParentEnded(reason=reason)),
                message_id=request_id(child, "parent-ended", run.run),
            )
            failpoints.reach("engine.child-told")
        return True

    # ---------------------------------------------------------------- a child's end

    async def tell_parent(self, plan: Plan | None, run: RunDocument) -> None:
        """Tell the step that waits for a run how it has ended, unless it waits no more."""
        link = run.parent
        assert link is not None
        version = await self._documents.get(link.run)
        if version is not None and children.awaits(version.run, run.run, link) is False:
            return
        event = await self._end_of(plan, run, link)
        subject = self._subjects.event(link.run, run.domain)
        message_id = request_id(run.run, "ended", link.run)
        try:
            await self._js.store(subject, msgspec.json.encode(event), message_id=message_id)
        except InvalidPayload as exc:
            event = _without_output(event, str(exc))
            await self._js.store(subject, msgspec.json.encode(event), message_id=message_id)
        failpoints.reach("engine.parent-told")

    async def _end_of(self, plan: Plan | None, run: RunDocument, link: ParentRun) -> ChildEnded:
        assert run.status in ("completed", "failed", "cancelled")
        event = ChildEnded(
            step=link.step,
            child=run.run,
            workflow=run.workflow,
            attempt=link.attempt,
            outcome=run.status,
            failure=run.failure,
            failed_step=run.failed_step,
            spent=await self._ledger.of_run(plan, run),
        )
        if run.status != "completed":
            return event
        if plan is None:
            return _without_output(event, f"version {run.definition!r} of its workflow is gone")
        try:
            raw = await self._inputs.result(plan, run)
        except InvalidPayload as exc:
            return _without_output(event, str(exc))
        return msgspec.structs.replace(event, output=msgspec.Raw(raw))


def _without_output(event: ChildEnded, why: str) -> ChildEnded:
    failure = _refused("InvalidPayload", why)
    return msgspec.structs.replace(event, outcome="failed", output=NO_RAW, failure=failure)


def _refused(type: str, message: str) -> Failure:
    return Failure(type, message, retryable=False)
