"""Read a run's events and its definition, and fold them."""

from __future__ import annotations

import time
from collections.abc import Iterable

import msgspec

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.looking import look
from treadle.sdk.client.store import Store
from treadle.sdk.client.timeline.folding import Happened, timeline_of
from treadle.sdk.client.timeline.span import Timeline
from treadle.sdk.definition import AgentLoopStep, Step, SubWorkflowStep, WaitStep
from treadle.sdk.handed_on import Carrier, handed_on
from treadle.sdk.messages import Settled
from treadle.sdk.planned import judged
from treadle.sdk.run import RunDocument, has_output, is_kept, sequence_of


async def timeline(store: Store, run: str) -> Timeline:
    """Return what a run did; raise ``UnknownRun`` if there is none."""
    found = await look(store, run)
    steps = {step.id: step for step in (found.definition.steps if found.definition else ())}
    delays_ms = {
        step.id: round(step.loop_delay_s * 1000)
        for step in steps.values()
        if isinstance(step, AgentLoopStep)
    }
    happened: list[Happened] = []
    carried = _carried(found.document, steps.values()) if found.document else {}
    outputs: dict[str, msgspec.Raw] = {}
    async for stored in store.events(run):
        event = decode_event(stored.data)
        if isinstance(event, Settled):
            event = judged(steps.get(event.step), event)
        if stored.sequence in carried and isinstance(event, Carrier):
            outputs[carried[stored.sequence]] = handed_on(event, stored.time_ms)
        if event is not None:
            happened.append(Happened(stored.sequence, stored.time_ms, event))
    made = timeline_of(found.view, happened, delays_ms, outputs)
    return msgspec.structs.replace(made, read_ms=time.time_ns() // 1_000_000)


def _carried(run: RunDocument, steps: Iterable[Step]) -> dict[int, str]:
    """Return which stored event has the output of which step: of one that waited, what ended it."""
    return {
        sequence_of(run.steps[step.id].event): step.id
        for step in steps
        if isinstance(step, WaitStep | SubWorkflowStep)
        and not (isinstance(step, SubWorkflowStep) and step.detached)
        and has_output(run, step)
        and not is_kept(run, step.id)
    }
