"""From deliveries to batches: decode, set the unreadable aside, group by run.

Events of one run are handled one batch at a time, those of different runs side by side. What
arrives while a batch is under way becomes the next batch, folded in one go.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any

import msgspec

from treadle.engine.core.moment import Moment
from treadle.engine.dead_letters import DeadLetters
from treadle.engine.pending import Pending
from treadle.engine.runs import Runs
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import ApiError
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.errors import ServerError
from treadle.sdk.ids import is_id
from treadle.sdk.lanes import lane_key
from treadle.sdk.log_fields import spaced
from treadle.sdk.messages import Event, Failure, RunRequested
from treadle.sdk.subjects import Subjects

POISON_DELIVERIES = 20
"""An event whose handling raised, and that was delivered this often, is set aside, so that the
events of other runs go on."""
FAILED_LATER_MS = 250

_log = logging.getLogger("treadle.engine")
_decoder = msgspec.json.Decoder(Event)


class Intake:
    """Takes events of all partitions and hands each run's batch to ``Runs``."""

    def __init__(self, subjects: Subjects, runs: Runs, dead_letters: DeadLetters) -> None:
        self._subjects = subjects
        self._runs = runs
        self._dead_letters = dead_letters
        self._queues: dict[str, list[Pending]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

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
            if address.lane != lane_key(event.lane if isinstance(event, RunRequested) else ""):
                raise ValueError("the subject names another lane than the event")
        except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors.
            if delivery is not None and source is not None:
                failure = Failure(type(exc).__name__, str(exc), retryable=False)
                self._start(self._set_aside(moment, subject, data, failure, delivery, source))
            return
        pending = Pending(moment, address.domain, event, subject, data, delivery, source)
        waiting = self._queues.get(address.run)
        if waiting is not None:
            waiting.append(pending)
            return
        self._queues[address.run] = [pending]
        self._start(self._handle_run(address.run))

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until everything taken is handled, at most so long."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=timeout_s)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _handle_run(self, run: str) -> None:
        while batch := self._queues[run]:
            self._queues[run] = []
            try:
                await self._runs.handle(batch)
            except Exception as exc:  # noqa: BLE001 — the loop that must outlive any batch
                await self._failed(batch, exc)
        del self._queues[run]

    async def _failed(self, batch: list[Pending], exc: Exception) -> None:
        """Hand a batch back whose handling raised; what keeps raising is set aside."""
        run = batch[0].moment.run
        events = [pending.moment.id for pending in batch]
        is_outage = _is_outage(exc)
        told = {"run": run, "events": events, "error": repr(exc)}
        extra = {**told, "place": self._runs.place(run, batch), "error_type": type(exc).__name__}
        if is_outage:
            _log.warning("engine.handling-delayed %s", spaced(told), extra=extra)
        else:
            _log.error("engine.handling-failed %s", spaced(told), extra=extra, exc_info=exc)
        for pending in batch:
            if is_outage or pending.deliveries < POISON_DELIVERIES or pending.delivery is None:
                pending.later(FAILED_LATER_MS)
                continue
            failure = Failure(type(exc).__name__, str(exc), retryable=False)
            try:
                await self._dead_letters.event(
                    "poison_event", pending.subject, pending.moment, pending.data, failure
                )
            except ServerError:
                pending.later(FAILED_LATER_MS)
            else:
                pending.ack()

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
        try:
            await self._dead_letters.event("corrupt_event", subject, moment, data, failure)
        except ServerError:
            delivery.nak(FAILED_LATER_MS)
        else:
            delivery.ack()
        source.finished()


def _is_outage(exc: Exception) -> bool:
    """True when the server is to blame, not the event: it is away, electing, or full."""
    return isinstance(exc, ServerError | Unknown) or (isinstance(exc, ApiError) and exc.transient)
