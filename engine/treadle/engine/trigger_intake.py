"""What is delivered of triggers: each name is settled once for all that has come of it.

A delivery is acked when its trigger is settled, and handed back in any other case, for as long as
it takes: it is all that remembers that something is due.
"""

from __future__ import annotations

import logging

from treadle.engine.recurring import later_ms
from treadle.engine.triggers import Triggers
from treadle.engine.underway import UnderWay
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.log_fields import spaced
from treadle.sdk.subjects import Subjects

FAILED_LATER_MS = 250
"""First wait before a trigger is looked at again whose handling failed; it doubles."""
LATER_MS_MAX = 60_000

_log = logging.getLogger("treadle.engine")


class TriggerIntake:
    """Takes stored triggers and fired schedules, and hands their names to ``Triggers``."""

    def __init__(self, subjects: Subjects, triggers: Triggers) -> None:
        self._subjects = subjects
        self._triggers = triggers
        self._queues: dict[str, list[tuple[Delivery, Puller]]] = {}
        self._under_way = UnderWay()

    def take(self, delivery: Delivery, source: Puller) -> None:
        """Take a delivery; what comes of a name that is being settled is settled after it."""
        name = self._subjects.parse_trigger(delivery.subject)
        waiting = self._queues.get(name)
        if waiting is not None:
            waiting.append((delivery, source))
            return
        self._queues[name] = [(delivery, source)]
        self._under_way.start(self._handle(name))

    async def wait_idle(self, timeout_s: float) -> None:
        """Wait until everything taken is handled, at most so long."""
        await self._under_way.wait_idle(timeout_s)

    async def _handle(self, name: str) -> None:
        try:
            while batch := self._queues[name]:
                self._queues[name] = []
                is_done = await self._is_done(name, max(each.delivered for each, _ in batch))
                for delivery, source in batch:
                    if is_done:
                        delivery.ack()
                    else:
                        delivery.nak(_later_ms(delivery.delivered))
                    source.finished()
        finally:
            del self._queues[name]

    async def _is_done(self, name: str, deliveries: int) -> bool:
        extra: dict[str, object] = {"trigger": name, "delivery": deliveries}
        try:
            await self._triggers.settle(name)
        except StoredUnreadable as exc:
            # Whoever mends it stores it anew, and that is delivered.
            extra["error"] = str(exc)
            _log.error("engine.trigger-unreadable %s", spaced(extra), extra=extra)
            return True
        except Exception as exc:  # noqa: BLE001 — a trigger must not stop the others
            extra["error"] = repr(exc)
            _log.warning("engine.trigger-delayed %s", spaced(extra), extra=extra)
            return False
        return True


def _later_ms(deliveries: int) -> int:
    return later_ms(deliveries, FAILED_LATER_MS, LATER_MS_MAX)
