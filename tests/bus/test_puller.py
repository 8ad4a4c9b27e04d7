"""The puller: credit, and every way in which pulls get lost.

Method: a real consumer; the server is killed, the consumer deleted, pulls left to expire. The
credit is checked at each delivery.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

Eventually = Callable[..., Awaitable[None]]
CONSUMER = {"ack_policy": "explicit", "ack_wait": 1_000_000_000, "max_ack_pending": 20_000}


class Reader:
    """Takes deliveries, checks the credit, acks and finishes them when told to."""

    def __init__(self) -> None:
        self.deliveries: list[Delivery] = []
        self.puller: Puller
        self.at_once = True
        self.in_hand: list[Delivery] = []
        self.violations: list[str] = []

    def take(self, delivery: Delivery) -> None:
        self.deliveries.append(delivery)
        self.in_hand.append(delivery)
        puller = self.puller
        # Noted, not raised: what a handler raises is logged by the connection.
        if puller.requested < 0 or puller.requested + puller.in_hand > puller.capacity:
            self.violations.append(f"requested {puller.requested}, in hand {puller.in_hand}")
        if self.at_once:
            self.finish(1)

    def finish(self, count: int) -> None:
        done, self.in_hand = self.in_hand[:count], self.in_hand[count:]
        for delivery in done:
            delivery.ack()
        self.puller.finished(len(done))

    @property
    def sequences(self) -> set[int]:
        return {delivery.sequence for delivery in self.deliveries}


def run_with(
    server: NatsServer, body: Callable[[JetStream, Reader], Coroutine[Any, Any, None]]
) -> None:
    async def main() -> None:
        settings = Settings(url=server.url)
        async with await Connection.open(settings, name="test") as connection:
            js = JetStream(connection)
            await js.ensure_stream({"name": "Q", "subjects": ["q.>"]})
            await js.ensure_consumer("Q", "c", CONSUMER)
            reader = Reader()
            try:
                await body(js, reader)
                await reader.puller.stop()
                assert reader.puller.requested == 0
                assert reader.violations == []
            finally:
                await js.api("STREAM.DELETE.Q")

    asyncio.run(main())


def make(js: JetStream, reader: Reader, capacity: int = 8, **options: Any) -> Puller:
    reader.puller = Puller(
        js, "Q", "c", capacity=capacity, on_delivery=reader.take, **{"heartbeat_s": 0.2, **options}
    )
    return reader.puller


async def fill(js: JetStream, count: int) -> None:
    await asyncio.gather(*(js.store("q.a", b"%d" % n) for n in range(count)))


def test_every_message_is_delivered_once_and_acked(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        await make(js, reader, capacity=50).start()
        await fill(js, 2000)
        await eventually(lambda: len(reader.deliveries) == 2000)
        assert [each.sequence for each in reader.deliveries] == list(range(1, 2001))
        first = reader.deliveries[0]
        assert (first.subject, first.data, first.delivered) == ("q.a", b"0", 1)
        await js.connection.flush()
        info = await js.api("CONSUMER.INFO.Q.c")
        assert (info["num_ack_pending"], info["num_pending"]) == (0, 0)

    run_with(server, body)


@pytest.mark.parametrize("capacity", [1, 3, 64])
def test_no_more_is_asked_for_and_in_hand_than_the_capacity(
    server: NatsServer, eventually: Eventually, capacity: int
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        chance = random.Random(capacity)
        reader.at_once = False
        puller = make(js, reader, capacity)
        await puller.start()
        await fill(js, 150)
        while len(reader.deliveries) < 150:
            await eventually(lambda: reader.in_hand)
            reader.finish(chance.randint(1, capacity))
            assert puller.requested + puller.in_hand <= capacity
        reader.finish(capacity)
        assert puller.in_hand == 0

    run_with(server, body)


def test_when_nothing_is_finished_nothing_more_comes(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        reader.at_once = False
        await fill(js, 20)
        puller = make(js, reader, capacity=5)
        await puller.start()
        await eventually(lambda: len(reader.in_hand) == 5)
        await js.connection.flush()
        assert (len(reader.in_hand), puller.requested) == (5, 0)
        reader.finish(1)
        await eventually(lambda: len(reader.in_hand) == 5)

    run_with(server, body)


def test_pulls_that_expire_give_their_credit_back(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        ended: list[int] = []
        puller = make(js, reader, capacity=4, expires_s=0.4)
        status = puller._status

        def counted(headers: bytes | None) -> None:
            ended.append(1)
            status(headers)

        puller._status = counted  # type: ignore[method-assign]
        await puller.start()
        await eventually(lambda: len(ended) >= 5)
        assert puller.requested <= 4
        await fill(js, 10)
        await eventually(lambda: len(reader.deliveries) == 10)

    run_with(server, body)


def test_a_nak_comes_back_after_its_delay_and_progress_holds_it(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        reader.at_once = False
        puller = make(js, reader, capacity=4)
        await puller.start()
        await fill(js, 1)
        await eventually(lambda: reader.in_hand)
        reader.in_hand.pop().nak(150)
        puller.finished()
        await eventually(lambda: reader.in_hand)
        again = reader.in_hand[0]
        assert again.delivered == 2
        # The server delivers again after 1 s of silence; this is not silence.
        for _ in range(6):
            again.in_progress()
            await js.connection.flush()
            await asyncio.sleep(0.25)
        assert len(reader.deliveries) == 2
        reader.finish(1)

    run_with(server, body)


def test_it_goes_on_after_the_server_was_killed(
    own_server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        puller = make(js, reader, capacity=10)
        await puller.start()
        for round in range(3):
            await fill(js, 100)
            own_server.kill()
            await eventually(lambda: not js.connection.is_connected)
            own_server.restart()
            await fill(js, 100)
            await eventually(lambda n=200 * (round + 1): len(reader.sequences) >= n)
            assert puller.requested + puller.in_hand <= 10

    run_with(own_server, body)


def test_it_starts_without_a_connection_and_pulls_with_the_next(
    own_server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        await fill(js, 5)
        own_server.kill()
        await eventually(lambda: not js.connection.is_connected)
        await make(js, reader).start()
        own_server.restart()
        await eventually(lambda: len(reader.sequences) == 5)

    run_with(own_server, body)


def test_a_deleted_consumer_is_made_again_and_pulled_from(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        calls: list[int] = []

        async def remake() -> None:
            calls.append(1)
            if len(calls) == 1:
                raise RuntimeError("the first try fails")
            await js.ensure_consumer("Q", "c", {**CONSUMER, "deliver_policy": "new"})

        puller = make(js, reader, on_missing=remake)
        await puller.start()
        await fill(js, 3)
        await eventually(lambda: len(reader.sequences) == 3)
        await js.api("CONSUMER.DELETE.Q.c")
        await eventually(lambda: len(calls) >= 2 and puller.requested > 0)
        await fill(js, 3)
        await eventually(lambda: len(reader.sequences) == 6)

    run_with(server, body)


def test_a_consumer_that_does_not_exist_yet_is_waited_for(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        await js.api("CONSUMER.DELETE.Q.c")
        await make(js, reader).start()
        await fill(js, 3)
        await js.ensure_consumer("Q", "c", CONSUMER)
        await eventually(lambda: len(reader.sequences) == 3)

    run_with(server, body)


def test_missed_heartbeats_lead_to_fresh_pulls(server: NatsServer, eventually: Eventually) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        puller = make(js, reader, heartbeat_s=0.1, expires_s=3.0)
        await puller.start()
        await js.connection.flush()
        # The server loses the pull without a word, as when the node that had it dies.
        old = puller._inbox
        assert old is not None
        await old.unsubscribe()
        await fill(js, 3)
        await eventually(lambda: len(reader.sequences) == 3)
        assert puller._inbox is not old

    run_with(server, body)


def test_a_server_that_stands_still_for_a_while_costs_nothing(
    own_server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        puller = make(js, reader, heartbeat_s=0.1, expires_s=3.0)
        await puller.start()
        await fill(js, 10)
        os.kill(own_server.pid, signal.SIGSTOP)
        await asyncio.sleep(0.6)
        os.kill(own_server.pid, signal.SIGCONT)
        await fill(js, 10)
        await eventually(lambda: len(reader.sequences) == 20)
        assert puller.requested + puller.in_hand <= puller.capacity

    run_with(own_server, body)


def test_after_a_stop_nothing_arrives_and_all_that_was_sent_has(
    server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        await fill(js, 3000)
        puller = make(js, reader, capacity=500)
        await puller.start()
        await eventually(lambda: len(reader.deliveries) > 600)
        await puller.stop()
        count = len(reader.deliveries)
        await fill(js, 10)
        await js.connection.flush()
        assert len(reader.deliveries) == count
        # What the server counts as delivered is what was seen here.
        info = await js.api("CONSUMER.INFO.Q.c")
        assert info["delivered"]["stream_seq"] == count
        await puller.stop()

    run_with(server, body)


def test_a_delivery_whose_handler_raises_gives_its_credit_back(
    server: NatsServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        failed: list[int] = []

        def take(delivery: Delivery) -> None:
            if delivery.delivered == 1 and delivery.sequence <= 5:
                failed.append(delivery.sequence)
                raise RuntimeError("a bug")
            reader.take(delivery)

        reader.puller = Puller(js, "Q", "c", capacity=2, on_delivery=take, heartbeat_s=0.2)
        await reader.puller.start()
        await fill(js, 10)
        await eventually(lambda: len(reader.sequences) == 10)
        assert failed == [1, 2, 3, 4, 5]

    run_with(server, body)
    assert "bus.handler-failed" in caplog.text


def test_an_ack_without_a_connection_is_no_error(
    own_server: NatsServer, eventually: Eventually
) -> None:
    async def body(js: JetStream, reader: Reader) -> None:
        reader.at_once = False
        await make(js, reader).start()
        await fill(js, 1)
        await eventually(lambda: reader.in_hand)
        own_server.kill()
        await eventually(lambda: not js.connection.is_connected)
        delivery = reader.in_hand[0]
        delivery.ack()
        delivery.nak(10)
        delivery.in_progress()
        own_server.restart()
        # It was not acked, so it comes again.
        await eventually(lambda: len(reader.deliveries) >= 2)
        assert reader.deliveries[1].sequence == delivery.sequence
        reader.finish(2)

    run_with(own_server, body)
