"""From deliveries to batches: decode, group by run, and see that every event ends.

An event is acked when it is handled, set aside when it cannot be read or handled, and handed back
in any other case: nothing that handling raises leaves this file.

Events of one run are handled one batch at a time, those of different runs side by side. What
arrives while a batch is under way becomes the next batch, folded in one go.
"""

from __future__ import annotations

import logging

import msgspec

from treadle.engine.core.moment import Moment
from treadle.engine.dead_letters import DeadLetters
from treadle.engine.last_resort import LastResort
from treadle.engine.pending import Pending
from treadle.engine.recurring import later_ms
from treadle.engine.runs import Runs
from treadle.engine.underway import UnderWay
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.errors import ServerError, StoredUnreadable, TreadleError
from treadle.sdk.identifier import is_id
from treadle.sdk.lanes import lane_key
from treadle.sdk.log_fields import spaced
from treadle.sdk.messages import (
    CancelRequested,
    Event,
    Failure,
    LaneEntered,
    MessageSent,
    ResumeRequested,
    RunRequested,
    SignalReceived,
)
from treadle.sdk.subjects import Subjects

POISON_DELIVERIES = 20
"""An event whose handling raised, and that was delivered this often, is set aside, so that the
events of other runs go on."""
FAILED_LATER_MS = 250
"""First wait before an event comes again whose handling failed; it doubles with each try."""
LATER_MS_MAX = 10_000
"""Longest such wait, and of an event that was never stored the time to mend what it needs."""

_log = logging.getLogger("treadle.engine")
_decoder = msgspec.json.Decoder(Event)


class Intake:
    """Takes events of all partitions and hands each run's batch to ``Runs``."""

    def __init__(
        self, subjects: Subjects, runs: Runs, last_resort: LastResort, dead_letters: DeadLetters
    ) -> None:
        self._subjects = subjects
        self._runs = runs
        self._last_resort = last_resort
        self._dead_letters = dead_letters
        self._queues: dict[str, list[Pending]] = {}
        self._under_way = UnderWay()

    def take(self, letter: str, delivery: Delivery, source: Puller) -> None:
        """Take a delivered event; ``letter`` names its stream."""
        self.take_message(
            Moment("", f"{letter}{delivery.sequence}", delivery.time_ms, delivery.sequence),
            delivery.subject,
            delivery.data,
            delivery,
            source,
        )

    def take_message(
        self,
        moment: Moment,
        subject: str,
        data: bytes,
        delivery: Delivery | None = None,
        source: Puller | None = None,
    ) -> None:
        """Take an event that was delivered, or read from its stream."""
        try:
            address = self._subjects.parse_event(subject)
            if not is_id(address.run):
                raise ValueError(f"run id {address.run!r} is not valid")
            moment = moment._replace(run=address.run)
            event = _decoder.decode(data)
            if address.lane != lane_key(_lane_of(event)):
                raise ValueError("the subject names another lane than the event")
        except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors.
            if delivery is not None and source is not None:
                failure = Failure(type(exc).__name__, str(exc), retryable=False)
                self._under_way.start(
                    self._set_aside(moment, subject, data, failure, delivery, source)
                )
            return
        pending = Pending(moment, address.domain, event, subject, data, delivery, source)
        waiting = self._queues.get(address.run)
        if waiting is not None:
            waiting.append(pending)
            return
        self._queues[address.run] = [pending]
        self._under_way.start(self._handle_run(address.run))

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until everything taken is handled, at most so long."""
        await self._under_way.wait_idle(timeout_s)

    async def _handle_run(self, run: str) -> None:
        try:
            while batch := self._queues[run]:
                self._queues[run] = []
                await self._handle(batch)
        finally:
            # Whatever happens, the run's next event finds no queue that nobody empties.
            del self._queues[run]

    async def _handle(self, batch: list[Pending]) -> None:
        """Handle a batch; each of its events is acked, handed back or set aside when it returns."""
        try:
            await self._runs.handle(batch)
        except Exception as exc:  # noqa: BLE001 — the loop that must outlive any batch
            if len(batch) == 1 or _is_outage(exc):
                await self._failed(batch, exc)
                return
            # One of them is to blame, and the others must not wait for it.
            for pending in batch:
                await self._handle([pending])

    async def _failed(self, batch: list[Pending], exc: Exception) -> None:
        """Hand back what could not be handled; what keeps failing is set aside."""
        run = batch[0].moment.run
        events = [pending.moment.id for pending in batch]
        is_outage = _is_outage(exc)
        deliveries = max(pending.deliveries for pending in batch)
        told = {"run": run, "events": events, "delivery": deliveries, "error": repr(exc)}
        extra = {**told, "place": self._runs.place(run, batch), "error_type": type(exc).__name__}
        if is_outage:
            _log.warning("engine.handling-delayed %s", spaced(told), extra=extra)
        else:
            # The traceback of a bug once: the tries after it fail the same way.
            is_told = deliveries > 1 or isinstance(exc, TreadleError)
            trace = None if is_told else exc
            _log.error("engine.handling-failed %s", spaced(told), extra=extra, exc_info=trace)
        for pending in batch:
            if is_outage:
                pending.later(FAILED_LATER_MS)
            elif await self._is_given_up(pending, exc):
                pending.ack()
            else:
                pending.later(_later_ms(pending.deliveries))

    async def _is_given_up(self, pending: Pending, exc: Exception) -> bool:
        """Set aside an event that fails time and again, and end its run if that cannot go on.

        A cancel does not wait until what is damaged is mended.
        """
        event, moment = pending.event, pending.moment
        is_damaged = isinstance(exc, StoredUnreadable)
        failure = Failure(type(exc).__name__, str(exc), retryable=False)
        if is_damaged and isinstance(event, CancelRequested):
            return await self._is_run_ended(pending, failure)
        if pending.deliveries < POISON_DELIVERIES or pending.delivery is None:
            return False
        if not await self._is_letter_stored(
            "poison_event", pending.subject, moment, pending.data, failure, pending.headers
        ):
            return False
        # Its sender can say again what a run hears from outside; nobody repeats the rest.
        is_vital = not isinstance(event, SignalReceived | MessageSent | ResumeRequested)
        if not (is_damaged or is_vital) or await self._is_run_ended(pending, failure):
            return True
        return pending.deliveries >= 2 * POISON_DELIVERIES

    async def _is_run_ended(self, pending: Pending, failure: Failure) -> bool:
        event, extra = pending.event, {"run": pending.moment.run, "error": failure.message}
        reason = event.reason if isinstance(event, CancelRequested) else None
        try:
            is_ended = await self._last_resort.end(
                pending.moment, pending.domain, failure, cancel_reason=reason
            )
        except Exception as exc:  # noqa: BLE001 — its event is handed back, or is in a letter
            _log.error("engine.run-not-ended %s", spaced(extra), extra=extra, exc_info=exc)
            return False
        if is_ended:
            _log.error("engine.run-given-up %s", spaced(extra), extra=extra)
        return is_ended

    async def _set_aside(
        self,
        moment: Moment,
        subject: str,
        data: bytes,
        failure: Failure,
        delivery: Delivery,
        source: Puller,
    ) -> None:
        told = {"event": moment.id, "subject": subject, "error": failure.message}
        extra = {"event_id": moment.id, "subject": subject, "error_type": failure.type}
        if moment.run:
            extra["run"] = moment.run
        _log.error("engine.event-unreadable %s", spaced(told), extra=extra)
        if await self._is_letter_stored(
            "corrupt_event", subject, moment, data, failure, delivery.raw_headers
        ):
            delivery.ack()
        else:
            delivery.nak(_later_ms(delivery.delivered))
        source.finished()

    async def _is_letter_stored(
        self,
        reason: str,
        subject: str,
        moment: Moment,
        data: bytes,
        failure: Failure,
        headers: bytes | None,
    ) -> bool:
        try:
            await self._dead_letters.event(reason, subject, moment, data, failure, headers)
        except Exception as exc:  # noqa: BLE001 — its event is handed back instead
            extra = {"event": moment.id, "subject": subject, "error": repr(exc)}
            _log.warning("engine.dead-letter-delayed %s", spaced(extra), extra=extra)
            return False
        return True


def _lane_of(event: Event) -> str:
    """Return the lane among whose requests an event has to be; empty for none."""
    if isinstance(event, LaneEntered):
        return event.lane
    return event.lane if isinstance(event, RunRequested) and not event.is_scheduled else ""


def _later_ms(deliveries: int) -> int:
    return later_ms(deliveries, FAILED_LATER_MS, LATER_MS_MAX)


def _is_outage(exc: Exception) -> bool:
    """True when the server is to blame, not the event: it is away, electing, or full."""
    return isinstance(exc, ServerError | Unknown) or (isinstance(exc, ApiError) and exc.transient)
