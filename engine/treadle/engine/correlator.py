"""What is delivered of published events: each meets the steps that wait for it, then it is acked.

An event is acked when everybody has been told, and handed back in any other case: whoever takes it
next tells those that are left, and a second telling changes nothing. Events are met side by side;
of two that fit one step, either may come first.
"""

from __future__ import annotations

import asyncio
import logging

from treadle.engine.recurring import later_ms
from treadle.engine.underway import UnderWay
from treadle.engine.waiters import Waiters, read_published
from treadle.sdk import failpoints
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.log_fields import spaced
from treadle.sdk.subjects import Subjects

AT_ONCE_MAX = 64
"""Events met side by side: enough to hide the round trips, few enough to leave room for runs."""
FAILED_LATER_MS = 250
"""First wait before an event is met again that could not be; it doubles."""
LATER_MS_MAX = 60_000

_log = logging.getLogger("treadle.engine")


class Correlator:
    """Takes published events and lets them meet the steps that wait."""

    def __init__(self, subjects: Subjects, waiters: Waiters) -> None:
        self._subjects = subjects
        self._waiters = waiters
        self._gate = asyncio.Semaphore(AT_ONCE_MAX)
        self._under_way = UnderWay()

    def take(self, delivery: Delivery, source: Puller) -> None:
        """Take a delivered event."""
        self._under_way.start(self._handle(delivery, source))

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until everything taken is handled, at most so long."""
        await self._under_way.wait_idle(timeout_s)

    async def _handle(self, delivery: Delivery, source: Puller) -> None:
        try:
            async with self._gate:
                is_done = await self._is_met(delivery)
            failpoints.reach("engine.event-met")
            if is_done:
                delivery.ack()
            else:
                delivery.nak(_later_ms(delivery.delivered))
        finally:
            source.finished()

    async def _is_met(self, delivery: Delivery) -> bool:
        extra: dict[str, object] = {"subject": delivery.subject, "sequence": delivery.sequence}
        try:
            name, _ = self._subjects.parse_external(delivery.subject)
            published = read_published(
                name, delivery.subject, delivery.sequence, delivery.time_ms, delivery.data
            )
            if published is None:
                raise ValueError("it is not JSON")
        except ValueError as exc:
            # It stays where it was published, and fits nobody.
            extra["error"] = str(exc)
            _log.error("engine.published-unreadable %s", spaced(extra), extra=extra)
            return True
        try:
            await self._waiters.meet(published)
        except Exception as exc:  # noqa: BLE001 — one event must not stop the others
            extra |= {"delivery": delivery.delivered, "error": repr(exc)}
            _log.warning("engine.published-delayed %s", spaced(extra), extra=extra)
            return False
        return True


def _later_ms(deliveries: int) -> int:
    return later_ms(deliveries, FAILED_LATER_MS, LATER_MS_MAX)
