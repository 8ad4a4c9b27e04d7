"""The connection: publish, subscribe, request, loss and return.

Method: a real server; it is killed, restarted and made to refuse. No sleep stands for a condition.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import pytest
import uvloop

from treadle.sdk.bus.connection import Connection, Message, Unknown
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import InvalidPayload
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings

Runner = Callable[[Coroutine[Any, Any, None]], None]
Eventually = Callable[..., Awaitable[None]]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Runner:
    """Run a coroutine on either event loop."""
    return asyncio.run if request.param == "asyncio" else uvloop.run


def opened(server: NatsServer) -> Coroutine[Any, Any, Connection]:
    return Connection.open(Settings(url=server.url), name="test")


# -------------------------------------------------------------------- publish, subscribe


def test_messages_arrive_in_order_with_headers_and_reply(server: NatsServer, run: Runner) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            got: list[Message] = []
            await connection.subscribe("t1.*", got.append)
            for n in range(1000):
                connection.publish("t1.a", b"%d" % n)
            connection.publish("t1.b", b"x", reply="r", headers=b"NATS/1.0\r\na: b\r\n\r\n")
            await connection.flush()
            assert [int(message.data) for message in got[:-1]] == list(range(1000))
            last = got[-1]
            assert (last.subject, last.reply, last.headers) == ("t1.b", "r", {"a": "b"})

    run(main())


def test_after_unsubscribing_nothing_arrives_and_nothing_is_lost_before(
    server: NatsServer, run: Runner
) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            got: list[Message] = []
            subscription = await connection.subscribe("t2", got.append)
            for _ in range(500):
                connection.publish("t2")
            await subscription.unsubscribe()
            assert len(got) == 500
            connection.publish("t2")
            await connection.flush()
            assert len(got) == 500
            await subscription.unsubscribe()

    run(main())


def test_large_messages_pass_in_both_directions(server: NatsServer, run: Runner) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            got: list[bytes] = []
            await connection.subscribe("t3", lambda message: got.append(message.data))
            body = os.urandom(connection.max_payload_bytes)
            for _ in range(12):
                connection.publish("t3", body)
                await connection.drain()
            await connection.flush()
            assert got == [body] * 12

    run(main())


def test_a_message_too_large_with_its_headers_is_refused_and_the_connection_lives(
    server: NatsServer,
) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            limit = connection.max_payload_bytes
            headers = b"NATS/1.0\r\na: b\r\n\r\n"
            connection.publish("t4", bytes(limit - len(headers)), headers=headers)
            with pytest.raises(InvalidPayload, match=str(limit)) as caught:
                connection.publish("t4", bytes(limit - len(headers) + 1), headers=headers)
            assert f"{len(headers)} bytes of headers" in str(caught.value)
            with pytest.raises(InvalidPayload):
                await connection.request("t4", bytes(limit + 1))
            await connection.flush()
            assert connection.is_connected

    asyncio.run(main())


@pytest.mark.parametrize("subject", ["a b", "a\r\nPUB b 0", "a\tb", "a\n"])
def test_a_subject_cannot_smuggle_a_command(server: NatsServer, subject: str) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            with pytest.raises(ValueError):
                connection.publish(subject)

    asyncio.run(main())


def test_a_producer_that_drains_does_not_outrun_the_server(own_server: NatsServer) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            os.kill(own_server.pid, signal.SIGSTOP)
            sent = 0

            async def produce() -> None:
                nonlocal sent
                while sent < 200:
                    connection.publish("t5", bytes(500_000))
                    sent += 1
                    await asyncio.sleep(0)
                    await connection.drain()

            producer = asyncio.create_task(produce())
            try:
                await asyncio.wait({producer}, timeout=0.3)
                assert not producer.done()
                assert sent < 60, "100 MB should not fit into buffers of 4 MB"
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
            await asyncio.wait_for(producer, 10)
            await connection.flush()

    asyncio.run(main())


def test_a_producer_that_does_not_drain_is_refused_at_last(own_server: NatsServer) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            os.kill(own_server.pid, signal.SIGSTOP)
            try:
                with pytest.raises(Unknown, match="unsent"):
                    for _ in range(400):
                        connection.publish("t6", bytes(500_000))
            finally:
                os.kill(own_server.pid, signal.SIGCONT)
            await asyncio.wait_for(connection.drain(), 10)
            connection.publish("t6")
            await connection.flush()

    asyncio.run(main())


# -------------------------------------------------------------------- request


def test_requests_are_answered_each_with_its_own_answer(server: NatsServer, run: Runner) -> None:
    async def main() -> None:
        async with await opened(server) as one, await opened(server) as two:
            await two.subscribe("t7", lambda ask: two.publish(ask.reply, ask.data + b"!"))
            answers = await asyncio.gather(*(one.request("t7", b"%d" % n) for n in range(500)))
            assert [answer.data for answer in answers] == [b"%d!" % n for n in range(500)]

    run(main())


def test_a_request_nobody_listens_to_is_unknown_at_once(server: NatsServer) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            began = time.monotonic()
            with pytest.raises(Unknown, match="nobody answers"):
                await connection.request("t8", timeout_s=20)
            assert time.monotonic() - began < 5

    asyncio.run(main())


def test_a_request_without_an_answer_is_unknown_after_its_time(server: NatsServer) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            asked: list[Message] = []
            await connection.subscribe("t9", asked.append)
            began = time.monotonic()
            waits = [connection.request("t9", timeout_s=each) for each in (0.3, 0.1, 0.2)]
            results = await asyncio.gather(*waits, return_exceptions=True)
            assert [type(each) for each in results] == [Unknown] * 3
            assert 0.3 <= time.monotonic() - began < 2
            # An answer that comes too late disturbs nobody.
            for each in asked:
                connection.publish(each.reply, b"late")
            await connection.flush()

    asyncio.run(main())


def test_a_cancelled_request_leaves_nothing_behind(server: NatsServer) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            await connection.subscribe("t10", lambda message: None)
            waiting = asyncio.create_task(connection.request("t10", timeout_s=0.1))
            await connection.flush()
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting
            with pytest.raises(Unknown):
                await connection.request("t10", timeout_s=0.1)

    asyncio.run(main())


# -------------------------------------------------------------------- loss and return


def test_all_waits_end_as_unknown_when_the_server_dies(own_server: NatsServer, run: Runner) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            await connection.subscribe("t11", lambda message: None)
            waits = [asyncio.create_task(connection.request("t11", timeout_s=30)) for _ in range(9)]
            await connection.flush()
            own_server.kill()
            began = time.monotonic()
            results = await asyncio.gather(*waits, return_exceptions=True)
            assert [type(each) for each in results] == [Unknown] * 9
            assert time.monotonic() - began < 2
            assert not connection.is_connected

    run(main())


def test_a_publish_while_disconnected_is_unknown_and_never_stored_later(
    own_server: NatsServer, eventually: Eventually, run: Runner
) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            js = JetStream(connection)
            await js.ensure_stream({"name": "GHOST", "subjects": ["ghost"]})
            own_server.kill()
            await eventually(lambda: not connection.is_connected)
            with pytest.raises(Unknown):
                connection.publish("ghost", b"1")
            with pytest.raises(Unknown):
                await js.attempt("ghost", b"2")
            with pytest.raises(Unknown):
                await connection.flush()
            own_server.restart()
            await eventually(lambda: connection.is_connected)
            assert await js.store("ghost", b"3") == 1

    run(main())


def test_subscriptions_are_restored_and_readers_are_told(
    own_server: NatsServer, eventually: Eventually, run: Runner
) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            got: list[bytes] = []
            told: list[bool] = []
            await connection.subscribe("t12", lambda message: got.append(message.data))
            gone = await connection.subscribe("t12", lambda message: got.append(b"gone"))
            await gone.unsubscribe()
            stop = connection.on_reconnect(lambda: told.append(connection.is_connected))
            connection.on_reconnect(lambda: 1 // 0)
            own_server.kill()
            await eventually(lambda: not connection.is_connected)
            # Made while there is no connection: it counts from the next one on.
            await connection.subscribe("t12.late", lambda message: got.append(b"late"))
            own_server.restart()
            await eventually(lambda: told == [True])
            stop()
            connection.publish("t12", b"back")
            connection.publish("t12.late")
            await connection.flush()
            assert got == [b"back", b"late"]

    run(main())


def test_a_subscription_that_is_not_to_be_restored_ends_with_its_connection(
    own_server: NatsServer, eventually: Eventually
) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            got: list[bytes] = []
            passing = connection.subscribe_raw(
                "t16", lambda _s, _r, _h, data: got.append(data), restored=False
            )
            connection.publish("t16", b"before")
            await connection.flush()
            own_server.kill()
            await eventually(lambda: not connection.is_connected)
            own_server.restart()
            await eventually(lambda: connection.is_connected)
            connection.publish("t16", b"after")
            await connection.flush()
            assert got == [b"before"]
            await passing.unsubscribe()

    asyncio.run(main())


def test_an_outage_is_logged_in_two_lines_without_a_traceback(
    own_server: NatsServer, eventually: Eventually, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with await opened(own_server) as connection:
            own_server.kill()
            await eventually(lambda: not connection.is_connected)
            own_server.restart()
            await eventually(lambda: connection.is_connected)
            await connection.flush()

    with caplog.at_level(logging.INFO):
        asyncio.run(main())
    lines = [record.getMessage().split()[0] for record in caplog.records]
    assert lines == ["bus.disconnected", "bus.reconnected"]
    assert not any(record.exc_info for record in caplog.records)


def test_an_error_of_the_server_leads_to_a_reconnect_and_not_to_the_end(
    server: NatsServer, eventually: Eventually
) -> None:
    async def main() -> None:
        async with await opened(server) as connection:
            told: list[bool] = []
            connection.on_reconnect(lambda: told.append(True))
            connection.max_payload_bytes *= 2
            connection.publish("t13", bytes(connection.max_payload_bytes))
            await eventually(lambda: told)
            await connection.flush()

    asyncio.run(main())


def test_a_closed_connection_refuses_and_ends_what_waits(server: NatsServer, run: Runner) -> None:
    async def main() -> None:
        connection = await opened(server)
        await connection.subscribe("t14", lambda message: None)
        waiting = asyncio.create_task(connection.request("t14", timeout_s=30))
        await connection.flush()
        await connection.close()
        with pytest.raises(Unknown, match="closed"):
            await waiting
        with pytest.raises(Unknown, match="closed"):
            connection.publish("t14")
        await connection.close()

    run(main())


def test_what_was_published_just_before_a_close_is_sent(server: NatsServer, run: Runner) -> None:
    async def main() -> None:
        async with await opened(server) as reader:
            got: list[bytes] = []
            await reader.subscribe("t15", lambda message: got.append(message.data))
            writer = await opened(server)
            for n in range(100):
                writer.publish("t15", b"%d" % n)
            await writer.close()
            await reader.flush()
            assert len(got) == 100

    run(main())
