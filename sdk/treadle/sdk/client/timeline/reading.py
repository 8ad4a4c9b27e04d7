"""Read a run's events and its definition, and fold them."""

from __future__ import annotations

from treadle.sdk.client.event import decode_event
from treadle.sdk.client.looking import look
from treadle.sdk.client.store import Store
from treadle.sdk.client.timeline.folding import Happened, timeline_of
from treadle.sdk.client.timeline.span import Timeline
from treadle.sdk.definition import AgentLoopStep


async def timeline(store: Store, run: str) -> Timeline:
    """Return what a run did; raise ``UnknownRun`` if there is none."""
    view = (await look(store, run)).view
    definition = await store.definition(view.workflow, view.definition)
    delays_ms = {
        step.id: round(step.loop_delay_s * 1000)
        for step in (definition.steps if definition else ())
        if isinstance(step, AgentLoopStep)
    }
    happened: list[Happened] = []
    async for stored in store.events(run):
        event = decode_event(stored.data)
        if event is not None:
            happened.append(Happened(stored.sequence, stored.time_ms, event))
    return timeline_of(view, happened, delays_ms)
