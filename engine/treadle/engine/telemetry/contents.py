"""The content of spans, read where it is stored already: journals, registers, events.

Nothing is stored for it a second time. A span whose content is gone, or cannot be read, is exported
without it: content is for people to look at, and never holds a trace up for longer than a moment.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict

import msgspec

from treadle.engine.core.plan import Plan
from treadle.engine.telemetry.transcript import Attributes, Entry, Transcript, values
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.client.result import step_output
from treadle.sdk.client.store import Store
from treadle.sdk.definition import SignalStep, Step
from treadle.sdk.errors import InvariantError, StoredUnreadable
from treadle.sdk.given import failed_before, given_by, shape_of
from treadle.sdk.messages import (
    RunRequested,
    SignalReceived,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
)
from treadle.sdk.outcome import outcome_of
from treadle.sdk.plans import result_of
from treadle.sdk.run import UNDER_WAY, RunDocument
from treadle.sdk.shape import Shape, assembled, leaves
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing import content, ids, names
from treadle.sdk.tracing.fold import RunFold
from treadle.sdk.tracing.span import Span

STEPS_MAX = 1_000
"""Steps whose journal is known up to a place; of any other it is read from the beginning."""
RECORDS_S = 2.0
"""What is waited for records that a verdict tells of: a replica may lag behind the leader."""
_LOOK_S = 0.05
_INPUTS_BYTES_MAX = 4 * content.BYTES_MAX
"""Of outputs that are read for one input: what comes after would be cut."""

_log = logging.getLogger("treadle.telemetry")


class _Record(msgspec.Struct, frozen=True):
    body: list[Entry]


_records = msgspec.json.Decoder(_Record)


class _Journal:
    """How far a step's journal was read."""

    def __init__(self) -> None:
        self.transcript = Transcript()
        self.sequence = 0
        self.number = 0
        """Of the next record."""
        self.is_short = False
        """It is gone, or is no agent's: nothing of it is waited for."""


class Contents:
    """Adds content to the spans of a namespace's runs, in the order of the log."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._store = Store(js, subjects)
        self._journals: OrderedDict[tuple[str, str], _Journal] = OrderedDict()

    def clear(self) -> None:
        """Forget all."""
        self._journals.clear()

    # ---------------------------------------------------------------- executions

    async def of_event(
        self, fold: RunFold, domain: str, event: object, spans: list[Span]
    ) -> list[Span]:
        """Return the spans that an event has given rise to, with their content."""
        if not isinstance(event, StepContinued | StepWaiting | StepCompleted | StepFailed):
            return spans
        trace_id, step = fold.trace_id, event.step
        known = {ids.part_span(trace_id, step, "part", str(p.number)): p for p in event.parts}
        told = [known[span.span_id].number for span in spans if span.span_id in known]
        if not told:
            return spans
        journal = self._journal(trace_id, step)
        await self._read_to(journal, fold.run, step, domain, max(told))
        found = {
            number: journal.transcript.take(number) | event.content.get(number, {})
            for number in sorted(told)
        }
        return [
            _with(span, found[known[span.span_id].number]) if span.span_id in known else span
            for span in spans
        ]

    def _journal(self, trace_id: str, step: str) -> _Journal:
        journal = self._journals.setdefault((trace_id, step), _Journal())
        self._journals.move_to_end((trace_id, step))
        if len(self._journals) > STEPS_MAX:
            self._journals.popitem(last=False)
        return journal

    async def _read_to(
        self, journal: _Journal, run: str, step: str, domain: str, number: int
    ) -> None:
        """Read a journal on until that entry, or until nothing more comes for a moment."""
        try:
            await self._read(journal, run, step, domain, number)
            until_s = time.monotonic() + RECORDS_S
            while journal.transcript.entries <= number and not journal.is_short:
                journal.is_short = time.monotonic() >= until_s
                if journal.is_short:
                    _log.warning("telemetry.content-missing run=%s step=%s", run, step)
                    break
                await asyncio.sleep(_LOOK_S)
                await self._read(journal, run, step, domain, number)
        except (ValueError, KeyError, TypeError, RecursionError) as exc:
            _log.warning("telemetry.content-unreadable run=%s step=%s %r", run, step, exc)
            journal.is_short = True

    async def _read(self, journal: _Journal, run: str, step: str, domain: str, number: int) -> None:
        s = self._subjects
        if journal.transcript.entries > number:
            return
        records = s.records(run, step, domain)
        async for stored in self._js.read(s.steps_stream, records, start=journal.sequence + 1):
            if s.parse_record(stored.subject) != journal.number:
                return  # One before it is still to come.
            for entry in _records.decode(stored.data).body:
                journal.transcript.read(entry)
            journal.sequence, journal.number = stored.sequence, journal.number + 1
            if journal.transcript.entries > number:
                return

    # ---------------------------------------------------------------- runs and steps

    async def of_document(self, fold: RunFold, run: RunDocument, spans: list[Span]) -> list[Span]:
        """Return the spans that a document has given rise to, with what went in and came out."""
        plan = Plan(fold.definition, run.definition, fold.plans)
        found: list[Span] = []
        for span in spans:
            if names.RUN_STATUS in span.attributes:
                found.append(_with(span, await self._of_run(plan, run)))
            elif names.STEP_STATUS in span.attributes:
                step = plan.steps[str(span.attributes[names.STEP])]
                found.append(_with(span, await self._of_step(plan, run, step)))
            else:
                found.append(span)
        if run.is_terminal:
            for step_id in plan.steps:
                self._journals.pop((fold.trace_id, step_id), None)
        return found

    async def _of_run(self, plan: Plan, run: RunDocument) -> Attributes:
        given = await self._payload(run.requested)
        returned = None
        if run.status == "completed":
            steps, is_single = outcome_of(plan.own, run)
            shapes = {step.id: result_of(plan.plans, run, step.id) for step in steps}
            returned = await self._outputs(plan, run, shapes[steps[0].id] if is_single else shapes)
        return _values(given, returned)

    async def _of_step(self, plan: Plan, run: RunDocument, step: Step) -> Attributes:
        returned = await self._output(run, step)
        if isinstance(step, SignalStep):
            return _values(None, returned)
        if failed := failed_before(plan, run, step):
            return _values(msgspec.json.encode(failed), returned)
        shape = shape_of(plan, run, step)
        if shape is None:
            return _values(await self._payload(run.requested), returned)
        return _values(await self._outputs(plan, run, shape), returned)

    async def _outputs(self, plan: Plan, run: RunDocument, shape: Shape) -> bytes | None:
        """Return the outputs of steps, put together, as JSON."""
        found: dict[str, bytes] = {}
        left = list(leaves(shape))
        while left and sum(map(len, found.values())) < _INPUTS_BYTES_MAX:
            leaf = left.pop(0)
            output = given_by(plan, leaf) or await self._output(run, plan.steps[leaf])
            if output is None:
                return None
            found[leaf] = output
        return assembled(shape, found | dict.fromkeys(left, b'"[cut]"'))

    async def _output(self, run: RunDocument, step: Step) -> bytes | None:
        entry = run.steps.get(step.id)
        if entry is None or entry.status in UNDER_WAY:
            return None
        try:
            return bytes(await step_output(self._store, run, step))
        except (InvariantError, StoredUnreadable):
            return None

    async def _payload(self, sequence: int) -> bytes | None:
        stored = await self._js.get(self._subjects.events_stream, sequence)
        event = None if stored is None else decode_event(stored.data)
        if isinstance(event, RunRequested):
            return bytes(event.input)
        return bytes(event.payload) if isinstance(event, SignalReceived) else None


def _values(given: bytes | None, returned: bytes | None) -> Attributes:
    return values(
        None if given is None else content.raw(given),
        None if returned is None else content.raw(returned),
    )


def _with(span: Span, attributes: Attributes) -> Span:
    return msgspec.structs.replace(span, attributes=span.attributes | attributes)
