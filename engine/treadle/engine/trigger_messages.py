"""Messages on the subjects of triggers: each starts one run, whose id is made of its place.

    delivered ──> its run is requested ──> acked
                  with a bound on runs in flight ──> handed back until its run is over, then acked
                  of a workflow that collects its starts ──> it is one of them ──> acked
    not JSON, not what the workflow takes ──> a dead letter, the trigger says so ──> acked

Nothing is believed but what stands: the trigger is read for each message. The server keeps the
bound, by the number of messages it hands out before the others.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from treadle.engine.dead_letters import DeadLetters
from treadle.engine.definitions import Definitions
from treadle.engine.requesting import Requests
from treadle.sdk import failpoints, payload
from treadle.sdk.bus.puller import Delivery
from treadle.sdk.client.requests import check_input
from treadle.sdk.client.starting import collect_of
from treadle.sdk.client.store import Store
from treadle.sdk.errors import UserError
from treadle.sdk.messages import Failure
from treadle.sdk.triggers.naming import MESSAGE_KEY, SUBJECT_KEY, message_run_id
from treadle.sdk.triggers.trigger import Source, Subject, Trigger

PAUSED_LATER_MS = 2_000
IN_FLIGHT_FIRST_MS = 50
IN_FLIGHT_MS_MAX = 1_000
"""How often a message whose run is under way comes back to ask for its end."""
NOTED_MS = 10_000
"""One failure after another is told of once in so long: each note is a write of the trigger."""


class Handled(NamedTuple):
    """What becomes of a delivery."""

    is_done: bool
    later_ms: int = 0
    """If it is not done: when it should come again; 0 leaves it to the caller."""


DONE = Handled(True)


class TriggerMessages:
    """Starts the runs of messages."""

    def __init__(
        self,
        store: Store,
        requests: Requests,
        definitions: Definitions,
        dead_letters: DeadLetters,
    ) -> None:
        self._store = store
        self._requests = requests
        self._definitions = definitions
        self._dead_letters = dead_letters

    async def handle(self, name: str, source: Source, delivery: Delivery) -> Handled:
        """Start the run of a message, or see whether it is over."""
        found = await self._store.trigger(name)
        trigger = found[0] if found else None
        if trigger is None or trigger.source is None or trigger.paused:
            return Handled(False, PAUSED_LATER_MS)
        on = trigger.on
        if trigger.source.consumer != source.consumer or not isinstance(on, Subject):
            return Handled(False, PAUSED_LATER_MS)
        run = message_run_id(name, source.stream, delivery.sequence, delivery.time_us)
        failpoints.reach("engine.message-taken")
        # A first delivery is mostly that; if it is not, a second request is still one run.
        if delivery.delivered == 1 or not await self._requests.is_known(run):
            handled = await self._request(name, trigger, source, run, delivery)
            if handled is not None:
                return handled
        failpoints.reach("engine.message-run-requested")
        return await self._in_flight(run, delivery) if on.max_in_flight else DONE

    async def _request(
        self, name: str, trigger: Trigger, source: Source, run: str, delivery: Delivery
    ) -> Handled | None:
        """Request the run; None if that is done, and otherwise what becomes of the message."""
        version = await self._requests.version(trigger)
        plan = await self._definitions.plan(trigger.workflow, version) if version else None
        if version is None or plan is None:
            text = f"workflow {trigger.workflow!r} is not registered; the message waits for it"
            await self._note(name, text, delivery.time_ms)
            return Handled(False)
        try:
            raw = _input_of(delivery)
            place = f"{source.stream}:{delivery.sequence}"
            metadata = {SUBJECT_KEY: delivery.subject, MESSAGE_KEY: place}
            definition = plan.definition
            if definition.collect is not None:
                await collect_of(
                    self._store,
                    name,
                    trigger,
                    version,
                    definition,
                    bytes(raw),
                    start_id=run,
                    metadata=metadata,
                )
                failpoints.reach("engine.message-collected")
                return DONE
            check_input(definition, bytes(raw))
            await self._requests.store(name, trigger, run, version, definition, raw, metadata)
        except UserError as exc:
            failure = Failure(type(exc).__name__, str(exc), retryable=False)
            number = await self._dead_letters.message(
                trigger.workflow, run, source.stream, delivery, failure
            )
            failpoints.reach("engine.message-set-aside")
            text = f"{exc} The message is a dead letter: `treadle dead show {number}`."
            await self._note(name, text, delivery.time_ms)
            return DONE
        return None

    async def _in_flight(self, run: str, delivery: Delivery) -> Handled:
        document = await self._store.document(run)
        if document is not None and document.is_terminal:
            return DONE
        later_ms = IN_FLIGHT_FIRST_MS << min(delivery.delivered, 16)
        return Handled(False, min(later_ms, IN_FLIGHT_MS_MAX))

    async def _note(self, name: str, failure: str, at_ms: int) -> None:
        """Let the trigger say why a message started no run; it is a word for people."""
        found = await self._store.trigger(name)
        if found is None or found[0] is None:
            return
        trigger, revision = found[0], found[1]
        if trigger.failed_ms and at_ms - trigger.failed_ms < NOTED_MS:
            return
        await self._store.put_trigger(
            name, replace(trigger, failed_ms=at_ms, failure=failure), revision
        )


def _input_of(delivery: Delivery) -> msgspec.Raw:
    """Return a message's JSON; one without a body is null. Raise ``InvalidPayload``."""
    if not delivery.data:
        return msgspec.Raw(b"null")
    payload.decode(f"message on {delivery.subject!r}", delivery.data)
    return msgspec.Raw(delivery.data)
