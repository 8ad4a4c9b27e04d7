"""Which subject triggers there are: an engine pulls the messages of each of them.

All engines share the consumer of a trigger. An engine hears of a change by the write of the
trigger, and looks every few seconds in any case: what it knows only says where to pull.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import NamedTuple

from treadle.engine.recurring import later_ms
from treadle.engine.trigger_messages import TriggerMessages
from treadle.engine.triggers import Triggers
from treadle.engine.underway import UnderWay
from treadle.sdk.bus.connection import Message
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.client.store import Store
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.log_fields import spaced
from treadle.sdk.triggers.trigger import Source

LOOK_S = 5.0
AGAIN_S = 0.1
"""After a ring: it is heard a moment before what rang can be read everywhere."""
IN_HAND_MAX = 64
"""Messages of one trigger that one engine works on at once."""
FAILED_LATER_MS = 250
"""First wait before a message comes again whose handling failed; it doubles."""
LATER_MS_MAX = 30_000

_log = logging.getLogger("treadle.engine")


class _Pull(NamedTuple):
    source: Source
    puller: Puller


class TriggerPulls:
    """The pulls of one engine for the subject triggers of its namespace."""

    def __init__(
        self, js: JetStream, store: Store, triggers: Triggers, messages: TriggerMessages
    ) -> None:
        self._js = js
        self._store = store
        self._triggers = triggers
        self._messages = messages
        self._pulls: dict[str, _Pull] = {}
        self._under_way = UnderWay()
        self._rung = asyncio.Event()

    async def run(self) -> None:
        """Keep pulling for what there is, until cancelled."""
        subject = self._store.subjects.all_triggers
        ringing = await self._js.connection.subscribe(subject, self._ring)
        try:
            while True:
                self._rung.clear()
                try:
                    await self.look()
                except Exception as exc:  # noqa: BLE001 — the next look comes
                    _log.warning("engine.triggers-not-read %r", exc)
                try:
                    async with asyncio.timeout(LOOK_S):
                        await self._rung.wait()
                    await asyncio.sleep(AGAIN_S)
                except TimeoutError:
                    pass
        finally:
            await ringing.unsubscribe()

    async def look(self) -> None:
        """Begin to pull for the triggers that are new, and end it for those that went."""
        wanted: dict[str, Source] = {}
        async for name, trigger, _ in self._store.triggers():
            if isinstance(trigger, StoredUnreadable):
                continue
            if trigger.source is not None and not (trigger.paused or trigger.deleted):
                wanted[name] = trigger.source
        for name, pull in list(self._pulls.items()):
            if wanted.get(name) != pull.source:
                del self._pulls[name]
                await pull.puller.stop()
        for name, source in wanted.items():
            if name not in self._pulls:
                self._pulls[name] = _Pull(source, self._puller(name, source))
                await self._pulls[name].puller.start()

    async def stop(self, timeout_s: float) -> None:
        """Pull no more, and wait until what was taken is handled, at most so long."""
        await asyncio.gather(*(pull.puller.stop() for pull in self._pulls.values()))
        self._pulls.clear()
        await self._under_way.wait_idle(timeout_s)

    def _ring(self, _: Message) -> None:
        self._rung.set()

    def _puller(self, name: str, source: Source) -> Puller:
        def taken(delivery: Delivery) -> None:
            self._under_way.start(self._handle(name, source, delivery, puller))

        puller = Puller(
            self._js,
            source.stream,
            source.consumer,
            capacity=IN_HAND_MAX,
            on_delivery=taken,
            on_missing=partial(self._triggers.settle, name),
        )
        return puller

    async def _handle(self, name: str, source: Source, delivery: Delivery, puller: Puller) -> None:
        later_ms = 0
        try:
            is_done, later_ms = await self._messages.handle(name, source, delivery)
        except Exception as exc:  # noqa: BLE001 — a message must not stop the others
            is_done = False
            told = {"trigger": name, "sequence": delivery.sequence, "error": repr(exc)}
            extra: dict[str, object] = {**told, "delivery": delivery.delivered}
            _log.warning("engine.message-delayed %s", spaced(extra), extra=extra)
        finally:
            puller.finished()
        if is_done:
            delivery.ack()
        else:
            delivery.nak(later_ms or _later_ms(delivery.delivered))


def _later_ms(deliveries: int) -> int:
    return later_ms(deliveries, FAILED_LATER_MS, LATER_MS_MAX)
