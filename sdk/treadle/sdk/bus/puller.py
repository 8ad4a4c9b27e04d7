"""A consumer's messages, with credit: never more asked for and in hand than the capacity.

    free = capacity - requested - in hand

Pulls go out when half of the capacity is free, so that messages flow without a gap; statuses of
the server give back what a pull will not deliver. When pulls may be lost (reconnect, missed
heartbeats) the puller moves to a fresh inbox: the old one is unsubscribed and flushed first, so
what the server had sent on it still counts, and what it has not sent stays in the stream.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

import msgspec

from treadle.sdk.bus.connection import Connection, Subscription, Unknown
from treadle.sdk.bus.jetstream import API_PREFIX, JetStream
from treadle.sdk.bus.wire import decode_headers, status_of
from treadle.sdk.ids import new_nonce

_log = logging.getLogger("treadle.bus")

EXPIRES_S = 3.0
"""A pull is good for so long. Short, because the pulls of a process that was stopped or cut off
go on swallowing messages until they expire."""
HEARTBEAT_S = 1.0
_HEARTBEATS_MISSED_MAX = 3
_QUIET_S = 0.2
"""Without a delivery for so long, none is on its way."""
_RETRY_S_FIRST = 0.05
_RETRY_S_MAX = 2.0
_HEARTBEAT = 100
_PENDING = "Nats-Pending-Messages"


class Delivery:
    """A message handed to this process; it stays its own until it is acked or its time is up."""

    __slots__ = (
        "_connection",
        "ack_subject",
        "data",
        "delivered",
        "raw_headers",
        "sequence",
        "subject",
        "time_us",
    )

    def __init__(
        self, connection: Connection, subject: str, ack: str, headers: bytes | None, data: bytes
    ) -> None:
        self._connection = connection
        self.subject = subject
        self.data = data
        self.ack_subject = ack
        self.raw_headers = headers
        # $JS.ACK[.<domain>.<account>].<stream>.<consumer>.<delivered>.<sequence>.<n>.<ns>.<rest>
        parts = ack.split(".")
        first = 4 if len(parts) == 9 else 6
        self.delivered = int(parts[first])
        self.sequence = int(parts[first + 1])
        self.time_us = int(parts[first + 3]) // 1_000

    @property
    def time_ms(self) -> int:
        """When the message was stored, in milliseconds since the epoch."""
        return self.time_us // 1_000

    @property
    def headers(self) -> dict[str, str]:
        return decode_headers(self.raw_headers)

    def ack(self) -> None:
        """Tell the server that this is done. Lost acknowledgements cost a redelivery."""
        self._send(b"")

    def nak(self, delay_ms: int = 0) -> None:
        """Hand it back; it is delivered again after the delay."""
        self._send(b'-NAK {"delay": %d}' % (delay_ms * 1_000_000) if delay_ms > 0 else b"-NAK")

    def in_progress(self) -> None:
        """Start its time anew."""
        self._send(b"+WPI")

    def _send(self, data: bytes) -> None:
        try:
            self._connection.publish(self.ack_subject, data)
        except Unknown:
            pass  # It will be redelivered.


class Puller:
    """Pulls a durable consumer's messages within a capacity."""

    def __init__(
        self,
        js: JetStream,
        stream: str,
        consumer: str,
        *,
        capacity: int,
        on_delivery: Callable[[Delivery], None],
        on_missing: Callable[[], Awaitable[None]] | None = None,
        expires_s: float = EXPIRES_S,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        assert capacity > 0
        self.capacity = capacity
        self.requested = 0
        """Messages asked for that have not come."""
        self.in_hand = 0
        """Messages delivered that are not finished."""
        self._refill = max(1, capacity // 2)
        self._connection = js.connection
        self._loop = asyncio.get_running_loop()
        self._name = f"{stream}.{consumer}"
        self._pull_subject = f"{API_PREFIX}CONSUMER.MSG.NEXT.{stream}.{consumer}"
        self._on_delivery = on_delivery
        self._on_missing = on_missing
        self._expires_ns = int(expires_s * 1e9)
        self._heartbeat_s = heartbeat_s
        self._seen_at = 0.0
        self._delivered_at = 0.0
        self._inbox: Subscription | None = None
        """None while the puller moves from one inbox to the next: no pulls."""
        self._trouble = asyncio.Event()
        self._missing = False
        self._retry_s = _RETRY_S_FIRST
        self._repairing = False
        self._stopping = False
        self._watcher: asyncio.Task[None] | None = None
        self._forget_reconnect: Callable[[], None] | None = None

    # ---------------------------------------------------------------- for its user

    async def start(self) -> None:
        """Begin to pull. While not connected it begins with the next connection."""
        self._forget_reconnect = self._connection.on_reconnect(self._trouble.set)
        self._open_inbox()
        self._watcher = asyncio.create_task(self._watch())

    async def stop(self) -> None:
        """Pull no more; when this returns, all that was sent here has been delivered.

        While messages flow, what was asked for is still taken: the server counts a message as
        delivered a moment before it sends it, and one that is sent after the unsubscribe is lost
        until its time is up.
        """
        self._stopping = True
        self._trouble.set()
        if self._forget_reconnect is not None:
            self._forget_reconnect()
            self._forget_reconnect = None
        if self._watcher is not None:
            if self._repairing:
                self._watcher.cancel()
            await asyncio.gather(self._watcher, return_exceptions=True)
        deadline = self._loop.time() + self._expires_ns / 1e9
        while self._is_flowing() and self._loop.time() < deadline:
            await asyncio.sleep(_QUIET_S / 10)
        await self._close_inbox()

    def finished(self, n: int = 1) -> None:
        """Give back the credit of so many deliveries."""
        self.in_hand -= n
        self._pull()

    def _is_flowing(self) -> bool:
        quiet_s = self._loop.time() - self._delivered_at
        return self.requested > 0 and quiet_s < _QUIET_S and self._connection.is_connected

    # ---------------------------------------------------------------- pull, receive

    def _pull(self) -> None:
        free = self.capacity - self.requested - self.in_hand
        if free < self._refill and (self.requested > 0 or free < 1):
            return
        if self._inbox is None or self._stopping:
            return
        # The server's limit on a heartbeat is half of the pull's life.
        body = {
            "batch": free,
            "expires": self._expires_ns,
            "idle_heartbeat": int(self._heartbeat_s * 1e9),
        }
        try:
            self._connection.publish(
                self._pull_subject, msgspec.json.encode(body), reply=self._inbox.subject
            )
        except Unknown:
            return  # Not connected: the reconnect pulls.
        if self.requested == 0:
            self._seen_at = self._loop.time()
        self.requested += free

    def _arrived(self, subject: bytes, reply: bytes, headers: bytes | None, data: bytes) -> None:
        self._seen_at = self._loop.time()
        if not reply.startswith(b"$JS.ACK."):
            self._status(headers)
            return
        self._delivered_at = self._seen_at
        self._retry_s = _RETRY_S_FIRST
        self.requested -= 1
        self.in_hand += 1
        delivery = Delivery(self._connection, subject.decode(), reply.decode(), headers, data)
        try:
            self._on_delivery(delivery)
        except Exception:
            self.finished()  # Nobody holds it; the server will deliver it again.
            raise
        if self.requested == 0:
            self._pull()

    def _status(self, raw_headers: bytes | None) -> None:
        status = status_of(raw_headers)
        if status == _HEARTBEAT:
            self._retry_s = _RETRY_S_FIRST
            return
        headers = decode_headers(raw_headers)
        if _PENDING in headers:
            # This pull has ended, and so many of its messages will not come.
            self.requested = max(0, self.requested - int(headers[_PENDING]))
            self._pull()
            return
        _log.debug("bus.pull-ended consumer=%s status=%s", self._name, raw_headers)
        self._missing = True
        self._trouble.set()

    # ---------------------------------------------------------------- recover

    async def _watch(self) -> None:
        while not self._stopping:
            try:
                async with asyncio.timeout(self._heartbeat_s):
                    await self._trouble.wait()
            except TimeoutError:
                silent_s = self._loop.time() - self._seen_at
                if self.requested == 0 or silent_s < self._heartbeat_s * _HEARTBEATS_MISSED_MAX:
                    continue
                if not self._connection.is_connected:
                    continue
                _log.warning("bus.heartbeats-missed consumer=%s for_s=%.1f", self._name, silent_s)
            if self._stopping:
                return
            self._trouble.clear()
            await self._recover()

    async def _recover(self) -> None:
        await self._close_inbox()
        if self._stopping:
            return
        if self._missing:
            self._missing = False
            self._repairing = True
            try:
                await self._repair()
            finally:
                self._repairing = False
        self._open_inbox()

    async def _repair(self) -> None:
        await asyncio.sleep(self._retry_s * random.uniform(0.5, 1.0))
        self._retry_s = min(self._retry_s * 2, _RETRY_S_MAX)
        if self._on_missing is None:
            return
        try:
            await self._on_missing()
        except Exception as exc:  # noqa: BLE001 - the next pull fails too and comes here again
            _log.warning("bus.consumer-missing consumer=%s error=%s", self._name, exc)

    def _open_inbox(self) -> None:
        subject = f"{self._connection.inbox_prefix}p.{new_nonce()}"
        # Not restored: pulls of the lost connection would find it and deliver into the change.
        self._inbox = self._connection.subscribe_raw(subject, self._arrived, restored=False)
        self._pull()

    async def _close_inbox(self) -> None:
        inbox, self._inbox = self._inbox, None
        if inbox is not None:
            await inbox.unsubscribe()
        self.requested = 0
