"""Read a run's events and its definition, and fold them."""

from __future__ import annotations

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.looking import look
from treadle.sdk.client.store import Store
from treadle.sdk.client.timeline.folding import Happened, timeline_of
from treadle.sdk.client.timeline.span import Timeline
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.messages import Settled
from treadle.sdk.planned import judged


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
    async for stored in store.events(run):
        event = decode_event(stored.data)
        if isinstance(event, Settled):
            event = judged(steps.get(event.step), event)
        if event is not None:
            happened.append(Happened(stored.sequence, stored.time_ms, event))
    return timeline_of(found.view, happened, delays_ms)
