"""Where the tasks of one type come from, and what to do with each value of a register.

    Task       first delivery: execute    again: its execution is lost, say so
    Delayed    hand it back until it is due; then say so. It is never executed
    Ended, Parked, Sleeping               nothing to do: acknowledge

The engine is the only one that retries: a redelivered task is not executed here.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.messages import Delayed, Register, Task
from treadle.sdk.subjects import RegisterAddress, Subjects
from treadle.worker.held import HeldTask
from treadle.worker.registry import Handler

if TYPE_CHECKING:
    from treadle.worker.runner import Runner

_log = logging.getLogger("treadle.worker")

ACK_WAIT_S = 20.0
"""Without a sign of life for this long a task is delivered again. Beats and take-over notice a
dead worker much sooner; this is for a network that is away, and must outlast an election."""
ACK_PENDING_MAX = 20_000
"""Delayed tasks wait as un-acknowledged deliveries, so it must be above what runs at once."""
UNREADABLE_RETRY_MS = 30_000
"""A newer engine may have written it: a worker that can read it gets its turn."""
UNREADABLE_REPORTS_MAX = 3
"""An engine is told so often of a register that cannot be read: each time is an event."""

_decode_register = msgspec.json.Decoder(Register).decode


class Intake:
    """The puller of one task type."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        handler: Handler,
        runner: Runner,
        *,
        domain: str,
        capacity: int,
        ack_wait_s: float,
        worker: str,
    ) -> None:
        self.handler = handler
        self.worker = worker
        self._js = js
        self._subjects = subjects
        self._runner = runner
        self._config = consumer_config(subjects.registers_of_type(handler.type, domain), ack_wait_s)
        self._consumer = subjects.worker_consumer(handler.type, domain)
        self._server_offset_ms = -_monotonic_ms()
        self._puller = Puller(
            js,
            subjects.steps_stream,
            self._consumer,
            capacity=capacity,
            on_delivery=self._receive,
            on_missing=self._ensure_consumer,
        )

    async def start(self) -> None:
        """Create the consumer if it is missing, and begin to pull."""
        await self._ensure_consumer()
        await self._puller.start()

    async def stop(self) -> None:
        """Stop pulling; nothing is received after this returns."""
        await self._puller.stop()

    def finished(self) -> None:
        """Make room for another delivery."""
        self._puller.finished()

    async def _ensure_consumer(self) -> None:
        await self._js.ensure_consumer(self._subjects.steps_stream, self._consumer, self._config)

    def _receive(self, delivery: Delivery) -> None:
        failpoints.reach("worker.received")
        address = self._subjects.parse_register(delivery.subject)
        try:
            register = _decode_register(delivery.data)
        except (ValueError, RecursionError) as exc:  # msgspec's errors are ValueErrors.
            self._receive_unreadable(delivery, address, exc)
            return
        if isinstance(register, Task):
            self._receive_task(delivery, address, register)
        elif isinstance(register, Delayed):
            self._receive_delayed(delivery, address, register)
        else:
            delivery.ack()
            self.finished()

    def _receive_unreadable(
        self, delivery: Delivery, address: RegisterAddress, exc: Exception
    ) -> None:
        """Let the engine look at it: whoever held the step's task is fenced, and says nothing."""
        what = "deleted" if not delivery.data else f"unreadable, {exc}"
        _log.error(
            "worker.register-unreadable subject=%s sequence=%d is %s. Something else wrote it, or "
            "this worker is older than the engine; it is offered again in %d s",
            delivery.subject,
            delivery.sequence,
            what,
            UNREADABLE_RETRY_MS // 1000,
        )
        if delivery.delivered <= UNREADABLE_REPORTS_MAX:
            self._runner.report_unreadable(self, delivery, address, UNREADABLE_RETRY_MS)
        else:
            delivery.nak(UNREADABLE_RETRY_MS)
            self.finished()

    def _receive_task(self, delivery: Delivery, address: RegisterAddress, task: Task) -> None:
        if self._runner.is_executing(delivery.sequence):
            # A server that was killed, or a consumer that was made anew, forgets what it gave out.
            delivery.in_progress()
            self.finished()
        elif self._runner.has_settled(delivery.sequence):
            delivery.ack()
            self.finished()
        elif delivery.delivered > 1:
            reason = f"delivered {delivery.delivered} times: its execution ended without a verdict"
            self._runner.report_lost(self, delivery, address, task, reason)
        else:
            self._runner.accept(HeldTask(delivery, address, task, self, time.monotonic()))

    def _receive_delayed(
        self, delivery: Delivery, address: RegisterAddress, delayed: Delayed
    ) -> None:
        # Early by either clock is handed back for the smaller rest: this host's may be behind, and
        # the server's is only known from what it delivered. If this host's is ahead, the engine
        # sees that the event comes too early and lets a timer take the rest of the wait.
        self._server_offset_ms = max(self._server_offset_ms, delivery.time_ms - _monotonic_ms())
        server_ms = _monotonic_ms() + self._server_offset_ms
        rest_ms = delayed.due_ms - max(time.time_ns() // 1_000_000, server_ms)
        if rest_ms > 0:
            delivery.nak(rest_ms)
            self.finished()
        else:
            self._runner.report_due(self, delivery, address, delayed.task)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def consumer_config(filter_subject: str, ack_wait_s: float) -> Mapping[str, Any]:
    """Return the configuration of the consumer that all workers of one task type share."""
    return {
        "ack_policy": "explicit",
        # One delivery for each step that is there, not for each value its register had.
        "deliver_policy": "last_per_subject",
        "filter_subject": filter_subject,
        "ack_wait": round(ack_wait_s * 1_000_000_000),
        "max_ack_pending": ACK_PENDING_MAX,
        "max_deliver": -1,
    }
