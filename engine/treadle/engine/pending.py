"""An event that waits to be handled, and how it ends: acked, or handed back for later."""

from __future__ import annotations

from treadle.engine.core.moment import Moment
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.messages import Event


class Pending:
    """One event, decoded, with the delivery that has to be acked (none when it was read)."""

    __slots__ = ("_is_over", "data", "delivery", "domain", "event", "moment", "source", "subject")

    def __init__(
        self,
        moment: Moment,
        domain: str,
        event: Event,
        subject: str,
        data: bytes,
        delivery: Delivery | None = None,
        source: Puller | None = None,
    ) -> None:
        self.moment = moment
        self.domain = domain
        self.event = event
        self.subject = subject
        self.data = data
        self.delivery = delivery
        self.source = source
        self._is_over = False

    @property
    def deliveries(self) -> int:
        """How often the event has been delivered; 1 for one that was read."""
        return self.delivery.delivered if self.delivery is not None else 1

    @property
    def headers(self) -> bytes | None:
        """The event's block of headers; None if it has none, or was read."""
        return self.delivery.raw_headers if self.delivery is not None else None

    def ack(self) -> None:
        """Tell the server that the event is handled."""
        if self.delivery is not None and not self._is_over:
            self.delivery.ack()
            self._finish()

    def later(self, delay_ms: int) -> None:
        """Hand the event back; it comes again after the delay."""
        if self.delivery is not None and not self._is_over:
            self.delivery.nak(delay_ms)
            self._finish()

    def _finish(self) -> None:
        # Handling may raise after some of a batch were acked: what is over stays so.
        self._is_over = True
        if self.source is not None:
            self.source.finished()
