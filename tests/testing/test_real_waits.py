"""Virtual time stands still while a handler awaits an answer, and jumps when nobody does.

Method: a server in a thread answers when the test lets it, after a real while; the handler's
own timers would be due in that time.
"""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import anyio
import pytest

from treadle.sdk import Workflow
from treadle.sdk.testing import clock, simulate
from treadle.worker import TaskContext, Worker


@contextmanager
def late_server(after_s: float) -> Iterator[int]:
    """Serve one connection: answer its first line after a while, then keep it open."""
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with listening.accept()[0] as connection:
                connection.recv(10)
                over.wait(after_s)
                connection.sendall(b"answer")
                over.wait(30)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            thread.join()


def played(handler: Any) -> tuple[Any, float]:
    """Return what a handler comes to, and how long it took in virtual time."""
    workflow, worker = Workflow("w"), Worker()
    workflow.task("ask")
    worker.handler("ask")(handler)
    run = asyncio.run(simulate(workflow, None, worker))
    return run.result(), run.elapsed_s


@pytest.mark.parametrize("client", ["anyio", "sock"])
def test_time_stands_still_while_an_answer_is_awaited(
    client: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(clock, "_OPEN_WAIT_S", 0.01)
    with late_server(0.3) as port:

        async def ask(ctx: TaskContext[Any]) -> str:
            async with asyncio.timeout(3600):
                if client == "anyio":
                    async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                        await stream.send(b"?")
                        return (await stream.receive()).decode()
                loop = asyncio.get_running_loop()
                with socket.socket() as plain:
                    plain.setblocking(False)
                    await loop.sock_connect(plain, ("127.0.0.1", port))
                    await loop.sock_sendall(plain, b"?")
                    return (await loop.sock_recv(plain, 10)).decode()

        assert played(ask) == ("answer", 0)


def test_time_stands_still_while_a_library_calls_in_a_thread() -> None:
    async def ask(ctx: TaskContext[Any]) -> str:
        async with asyncio.timeout(3600):
            return await asyncio.to_thread(_late, "answer")

    assert played(ask) == ("answer", 0)


def _late(value: str) -> str:
    threading.Event().wait(0.2)
    return value


def test_time_jumps_over_a_connection_that_is_only_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_ANSWER_WAIT_S", 600)
    with late_server(0) as port:

        async def ask(ctx: TaskContext[Any]) -> str:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"?")
                answer = (await stream.receive()).decode()
                await asyncio.sleep(3600)
                return answer

        assert played(ask) == ("answer", 3600)


def test_time_goes_on_at_last_although_nobody_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clock, "_ANSWER_WAIT_S", 0.05)
    monkeypatch.setattr(clock, "_OPEN_WAIT_S", 0.01)
    with late_server(30) as port:

        async def ask(ctx: TaskContext[Any]) -> str:
            async with await anyio.connect_tcp("127.0.0.1", port) as stream:
                await stream.send(b"?")
                with pytest.raises(TimeoutError):
                    async with asyncio.timeout(60):
                        await stream.receive()
                return "nothing"

        assert played(ask) == ("nothing", 60)
