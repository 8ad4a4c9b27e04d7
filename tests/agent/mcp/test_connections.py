"""Connections to MCP servers: who enters and leaves them, and what ends with them.

Method: real servers as processes, killed and hung; what is left is looked up by pid."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.mcp.place import Place, until

from treadle.sdk.errors import UserError
from treadle.worker.agent.mcp import McpServer, McpUnavailable
from treadle.worker.agent.mcp import connection as connections

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def order(sku: str) -> Any:
    return lambda client: client.call_tool("order", {"sku": sku})


def wait(client: Any) -> Any:
    return client.call_tool("wait", {})


def test_one_task_enters_and_leaves_a_connection_whoever_calls(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    entered: list[asyncio.Task[Any] | None] = []
    left: list[asyncio.Task[Any] | None] = []
    real = connections.open_client

    @asynccontextmanager
    async def noted(*args: Any, **options: Any) -> AsyncGenerator[Any]:
        entered.append(asyncio.current_task())
        try:
            async with real(*args, **options) as client:
                yield client
        finally:
            left.append(asyncio.current_task())

    monkeypatch.setattr(connections, "open_client", noted)

    async def go() -> None:
        server = place.server()
        skus = ["a", "b", "c"]
        await asyncio.gather(*(server.link().ask(order(sku)) for sku in skus))
        aborted = asyncio.create_task(server.link().ask(wait))
        await until(lambda: "wait began" in place.log)
        aborted.cancel()
        await asyncio.wait({aborted})
        await asyncio.create_task(server.link().ask(order("d")))
        await asyncio.create_task(server.close())

    asyncio.run(go())
    assert len(entered) == 2, "the aborted call retired the first connection"
    assert {*entered} == {*left}
    assert len({*entered}) == 2


def test_an_aborted_call_leaves_those_beside_it_alone(place: Place) -> None:
    async def go() -> None:
        server = place.server()
        link = server.link()
        aborted = asyncio.create_task(link.ask(wait))
        beside = asyncio.create_task(link.ask(wait))
        await until(lambda: place.log.count("wait began") == 2)
        aborted.cancel()
        await asyncio.wait({aborted})
        await link.ask(order("a"))
        assert not beside.done()
        assert len(place.alive) == 2, "the retired connection waits for its last call"
        beside.cancel()
        await until(lambda: len(place.alive) == 1)
        await server.close()

    asyncio.run(go())


def test_a_server_killed_while_idle_costs_no_call(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.mcp")

    async def go() -> None:
        server = place.server()
        await server.link().ask(order("a"))
        os.kill(place.pids[-1], signal.SIGKILL)
        await until(lambda: "the server has closed it" in caplog.text)
        await server.link().ask(order("b"))
        await server.close()

    asyncio.run(go())
    assert place.log == ["order a", "order b"]


def test_a_dead_server_keeps_no_core_busy(place: Place) -> None:
    async def go() -> None:
        server = place.server()
        waiting = asyncio.create_task(server.link().ask(wait))
        await until(lambda: "wait began" in place.log)
        os.kill(place.pids[-1], signal.SIGKILL)
        await asyncio.wait({waiting})
        began_s = time.process_time()
        await asyncio.sleep(0.5)
        assert time.process_time() - began_s < 0.1
        await server.close()

    asyncio.run(go())


def test_a_server_that_does_not_answer_is_given_up_by_all_at_once(place: Place) -> None:
    async def go() -> None:
        script = f"echo $$ >> {place.directory}/pids; exec sleep 600"
        server = McpServer("mute", command=["sh", "-c", script], init_timeout=0.5)
        began_s = time.monotonic()
        asked = [server.link().tools() for _ in range(20)]
        found = await asyncio.gather(*asked, return_exceptions=True)
        assert time.monotonic() - began_s < 6
        assert {type(each) for each in found} == {McpUnavailable}
        assert "did not answer within 0.5 s" in str(found[0])
        await server.close()

    asyncio.run(go())
    assert len(place.pids) == 1, "one attempt for all who waited for it"


@pytest.mark.parametrize(
    ("command", "why"),
    [
        (["no-such-program"], "there is no program 'no-such-program'"),
        (["sh", "-c", "exit 3"], "MCPError: Connection closed"),
    ],
)
def test_a_server_that_cannot_be_started_is_named(command: list[str], why: str) -> None:
    async def go() -> None:
        server = McpServer("broken", command=command)
        with pytest.raises(McpUnavailable, match=why) as caught:
            await server.link().tools()
        assert "See that it runs" in str(caught.value)
        await server.close()

    asyncio.run(go())


def test_what_a_server_leaves_behind_ends_with_the_connection(place: Place) -> None:
    async def go() -> None:
        server = place.server(env={"MCP_CHILD": "yes", "MCP_DEAF": "yes"})
        await server.link().ask(order("a"))
        assert len(place.alive) == 2
        await server.close()
        assert place.alive == []

    asyncio.run(go())


def test_a_loop_that_ends_takes_its_servers_with_it(place: Place) -> None:
    async def go() -> None:
        await place.server().link().ask(order("a"))

    asyncio.run(go())
    assert place.alive == []


_HELD = """
import asyncio, sys
from treadle.worker.agent import McpServer

async def main():
    server = McpServer("shop", command=sys.argv[1:], init_timeout=40,
                       env={"MCP_CHILD": "yes", "MCP_DEAF": "yes"})
    await server.link().tools()
    print("open", flush=True)
    await asyncio.sleep(600)

asyncio.run(main())
"""


def test_kill_9_of_the_process_takes_its_servers_with_it(place: Place, tmp_path: Path) -> None:
    script = tmp_path / "held.py"
    script.write_text(_HELD)
    command = [sys.executable, str(script), *place.command()]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"open\n"
        assert len(place.alive) == 2
        process.kill()
    asyncio.run(until(lambda: not place.alive))


def test_one_object_serves_several_loops(place: Place) -> None:
    server = place.server()

    async def go(sku: str) -> None:
        await server.link().ask(order(sku))
        await server.close()

    for sku in ("a", "b"):
        asyncio.run(go(sku))
    assert place.log == ["order a", "order b"]


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        ({}, "neither of command and url"),
        ({"command": ["x"], "url": "http://h"}, "both of command and url"),
        ({"url": "ftp://h"}, "no http:// or https:// address"),
        ({"url": "http://h", "env": {"a": "b"}}, "env and cwd are for a command"),
        ({"command": ["x"], "headers": {"a": "b"}}, "headers are for a url"),
        ({"command": ["x"], "timeout": 0}, "timeout is 0.0 s"),
        ({"command": ["x"], "tools": ["a"], "requires_approval": ["b"]}, "which tools leaves out"),
        ({"command": "x y"}, "one is a text"),
    ],
)
def test_a_server_that_cannot_be_meant_is_refused(options: dict[str, Any], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        McpServer("shop", **options)
