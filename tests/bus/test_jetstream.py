"""Read back, list, purge, create: JetStream as a store.

Method: a real server with a stream per test; what an operator meets is asserted by its words.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest

from treadle.sdk.bus import reading
from treadle.sdk.bus.acks import time_us
from treadle.sdk.bus.assets import differences
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.doorbell import Doorbell
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.errors import InvalidPayload, ServerUnavailable, ServerUnsuitable
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

Body = Callable[[JetStream, str], Coroutine[Any, Any, None]]
WithStream = Callable[..., None]
Eventually = Callable[..., Awaitable[None]]


@pytest.fixture
def with_stream(settings: Settings, namespace: str) -> WithStream:
    """Run a test body with a stream named like the namespace, subjects <namespace>.>."""

    def run(body: Body, **config: Any) -> None:
        async def main() -> None:
            async with await Connection.open(settings, name="test") as connection:
                js = JetStream(connection)
                subjects = [f"{namespace}.>"]
                asked = {"name": namespace, "subjects": subjects, "allow_direct": True, **config}
                await js.ensure_stream(asked)
                await body(js, namespace)
                await js.api(f"STREAM.DELETE.{namespace}")

        asyncio.run(main())

    return run


# -------------------------------------------------------------------- read


def test_the_newest_message_is_read_by_subject_and_by_filter(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        await js.store(f"{ns}.a.1", b"one")
        await js.store(f"{ns}.a.2", b"\x00\xff two")
        one, two = await js.last(ns, f"{ns}.a.1"), await js.last(ns, f"{ns}.a.>")
        assert one is not None
        assert two is not None
        assert (one.sequence, one.data, one.subject) == (1, b"one", f"{ns}.a.1")
        assert (two.sequence, two.data, two.subject) == (2, b"\x00\xff two", f"{ns}.a.2")
        assert await js.last(ns, f"{ns}.b") is None
        assert await js.get(ns, 1) == one
        assert await js.get(ns, 99) is None

    with_stream(body)


def test_the_next_message_is_the_first_that_matches_from_a_sequence_on(
    with_stream: WithStream,
) -> None:
    async def body(js: JetStream, ns: str) -> None:
        for subject in ("a.1", "b.1", "a.2", "b.2"):
            await js.store(f"{ns}.{subject}", subject.encode())
        found = [await js.next(ns, f"{ns}.a.*", start) for start in (1, 2, 3, 4, 5)]
        assert [each and (each.sequence, each.subject) for each in found] == [
            *((1, f"{ns}.a.1"), (3, f"{ns}.a.2"), (3, f"{ns}.a.2"), None, None)
        ]
        await js.purge(ns, f"{ns}.a.1")
        first = await js.next(ns, f"{ns}.a.*", 1)
        assert first is not None and first.sequence == 3

    with_stream(body)


def test_an_empty_message_is_a_message(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        await js.store(f"{ns}.a", b"")
        stored = await js.last(ns, f"{ns}.a")
        assert stored is not None
        assert stored.data == b""

    with_stream(body)


def test_a_read_passes_over_many_messages_in_order_and_none_twice(
    with_stream: WithStream, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "BATCH", 100)

    async def body(js: JetStream, ns: str) -> None:
        writes = (js.store(f"{ns}.{'ab'[n % 2]}", b"%d" % n) for n in range(1000))
        await asyncio.gather(*writes)
        every = [stored.sequence async for stored in js.read(ns, f"{ns}.>")]
        assert every == list(range(1, 1001))
        of_a = [stored async for stored in js.read(ns, f"{ns}.a", start=501)]
        assert len(of_a) == 250
        assert {stored.subject for stored in of_a} == {f"{ns}.a"}
        assert of_a[0] == await js.get(ns, of_a[0].sequence)
        assert [stored async for stored in js.read(ns, f"{ns}.c")] == []
        assert [stored async for stored in js.read(ns, f"{ns}.>", start=1001)] == []

    with_stream(body)


def test_a_read_of_large_messages_does_not_end_early(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        for _ in range(12):
            await js.store(f"{ns}.a", bytes(900_000))
        assert [each.sequence async for each in js.read(ns, f"{ns}.>")] == list(range(1, 13))

    with_stream(body)


def test_a_read_goes_on_over_a_server_restart(own_server: NatsServer) -> None:
    async def main() -> None:
        settings = Settings(url=own_server.url)
        async with await Connection.open(settings, name="test") as connection:
            js = JetStream(connection)
            await js.ensure_stream({"name": "R", "subjects": ["r"], "allow_direct": True})
            await asyncio.gather(*(js.store("r", b"") for _ in range(600)))
            got: list[int] = []
            async for stored in js.read("R", "r"):
                got.append(stored.sequence)
                if len(got) == 10:
                    own_server.kill()
                    own_server.restart()
            assert got == list(range(1, 601))

    asyncio.run(main())


def test_a_missing_stream_says_that_the_namespace_is_not_set_up(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        calls: list[Awaitable[object]] = [
            js.last("NO_SUCH", "x"),
            js.get("NO_SUCH", 1),
            js.purge("NO_SUCH", "x"),
            js.ensure_consumer("NO_SUCH", "c", {"ack_policy": "explicit"}),
        ]
        for call in calls:
            with pytest.raises(ServerUnsuitable, match="treadle engine"):
                await call
        with pytest.raises(ServerUnavailable, match="not set up"):
            await js.store("no.such.subject", b"", budget_s=0.1)
        with pytest.raises(ApiError) as caught:
            await js.api("STREAM.INFO.NO_SUCH")
        assert (caught.value.code, caught.value.err_code) == (404, 10059)

    with_stream(body)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-02T03:04:05Z", 1767323045000000),
        ("2026-01-02T03:04:05.1Z", 1767323045100000),
        ("2026-01-02T03:04:05.123999999Z", 1767323045123999),
        ("2026-01-02T05:04:05.000000001+02:00", 1767323045000000),
        ("2026-01-02T01:04:05.5-02:00", 1767323045500000),
    ],
)
def test_times_are_rounded_down_to_microseconds(text: str, expected: int) -> None:
    assert time_us(text) == expected


def test_a_message_has_the_same_time_read_listed_and_delivered(
    with_stream: WithStream, eventually: Eventually
) -> None:
    async def body(js: JetStream, ns: str) -> None:
        await asyncio.gather(*(js.store(f"{ns}.a", b"%d" % n) for n in range(50)))
        await js.ensure_consumer(ns, "c", {"ack_policy": "explicit"})
        got: list[Delivery] = []
        puller = Puller(js, ns, "c", capacity=100, on_delivery=got.append)
        await puller.start()
        await eventually(lambda: len(got) == 50)
        await puller.stop()
        listed = [each async for each in js.read(ns, f"{ns}.>")]
        for delivery, stored in zip(got, listed, strict=True):
            assert stored == await js.get(ns, delivery.sequence)
            assert (stored.sequence, stored.time_ms) == (delivery.sequence, delivery.time_ms)

    with_stream(body)


# -------------------------------------------------------------------- write, purge


def test_a_full_stream_is_said_to_be_full(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        await js.store(f"{ns}.a", b"1")
        with pytest.raises(ApiError) as caught:
            await js.attempt(f"{ns}.a", b"2")
        assert caught.value.transient
        with pytest.raises(ServerUnavailable, match="full"):
            await js.store(f"{ns}.a", b"2", budget_s=0.1)

    with_stream(body, max_msgs=1, discard="new")


def test_a_full_stream_takes_more_once_there_is_room(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        await js.store(f"{ns}.a", b"1")
        waiting = asyncio.create_task(js.store(f"{ns}.a", b"2"))
        assert await js.purge(ns, f"{ns}.a") == 1
        assert await waiting == 2

    with_stream(body, max_msgs=1, discard="new")


def test_a_message_too_large_for_the_stream_is_the_users_error(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        with pytest.raises(InvalidPayload, match="max_msg_size"):
            await js.store(f"{ns}.a", bytes(2000))

    with_stream(body, max_msg_size=1000)


def test_a_purge_spares_what_it_is_told_to(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        for n in range(6):
            await js.store(f"{ns}.{'ab'[n % 2]}", b"")
        assert await js.purge(ns, f"{ns}.a", keep=1) == 2
        assert await js.purge(ns, f"{ns}.b", up_to=4) == 1
        assert [each.sequence async for each in js.read(ns, f"{ns}.>")] == [4, 5, 6]

    with_stream(body)


# -------------------------------------------------------------------- create


def test_a_stream_that_exists_is_accepted_only_if_it_is_the_same(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        same = {"name": ns, "subjects": [f"{ns}.>"], "allow_direct": True}
        await asyncio.gather(*(js.ensure_stream(same) for _ in range(4)))
        await js.ensure_stream({**same, "description": "an operator wrote this"})
        with pytest.raises(ServerUnsuitable) as caught:
            await js.ensure_stream({**same, "max_msgs_per_subject": 1, "allow_msg_ttl": True})
        assert "max_msgs_per_subject is -1, not 1" in str(caught.value)
        assert "allow_msg_ttl" in str(caught.value)
        assert "allow_direct" not in str(caught.value)
        with pytest.raises(ServerUnsuitable, match="overlap"):
            await js.ensure_stream({"name": f"{ns}_2", "subjects": [f"{ns}.a.>"]})
        with pytest.raises(ServerUnsuitable, match="replicas"):
            await js.ensure_stream({"name": f"{ns}_3", "subjects": ["x3"], "num_replicas": 3})

    with_stream(body)


def test_what_the_server_leaves_out_is_the_zero_value() -> None:
    asked = {"a": False, "b": 0, "c": "", "d": [], "e": True, "f": ["x"], "g": 1}
    assert differences(asked, {"g": 2, "f": ["x"]}) == ["e", "g"]


def test_a_consumer_that_exists_is_brought_to_the_configuration(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        config = {"ack_policy": "explicit", "filter_subject": f"{ns}.a.*", "ack_wait": 10**10}
        await asyncio.gather(*(js.ensure_consumer(ns, "c", config) for _ in range(4)))
        await js.ensure_consumer(ns, "c", {**config, "ack_wait": 2 * 10**10})
        info = (await js.api(f"CONSUMER.INFO.{ns}.c"))["config"]
        assert (info["ack_wait"], info["durable_name"]) == (2 * 10**10, "c")
        with pytest.raises(ServerUnsuitable, match=r"deliver.policy"):
            await js.ensure_consumer(ns, "c", {**config, "deliver_policy": "last_per_subject"})

    with_stream(body)


# -------------------------------------------------------------------- doorbell


def test_a_doorbell_rings_for_what_came_before_the_wait(with_stream: WithStream) -> None:
    async def body(js: JetStream, ns: str) -> None:
        async with Doorbell(js.connection, f"bell.{ns}") as bell:
            assert await bell.wait(0.01) is False
            js.connection.publish(f"bell.{ns}")
            js.connection.publish(f"bell.{ns}")
            await js.connection.flush()
            assert await bell.wait(0.01) is True
            assert await bell.wait(0.01) is False

    with_stream(body)


def test_a_doorbell_rings_after_a_reconnect(own_server: NatsServer) -> None:
    async def main() -> None:
        settings = Settings(url=own_server.url)
        async with (
            await Connection.open(settings, name="test") as connection,
            Doorbell(connection, "bell") as bell,
        ):
            own_server.kill()
            own_server.restart()
            assert await bell.wait(10)

    asyncio.run(main())
