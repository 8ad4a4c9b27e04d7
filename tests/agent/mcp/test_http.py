"""An MCP server over streamable HTTP on the loopback: called, killed, started again.

Method: a real server process on a free port."""

from __future__ import annotations

import asyncio

import pytest
from tests.agent.mcp.place import INIT_S, Place, free_port, listens
from tests.agent.tools.stage import Recorder, call

from treadle.worker.agent.mcp import McpServer, McpUnavailable
from treadle.worker.agent.mcp.toolbox import Toolbox
from treadle.worker.agent.tools.executing import execute_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_a_server_over_http_is_called_and_found_again_after_it_was_killed(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    port = free_port()

    async def go() -> None:
        url = f"http://127.0.0.1:{port}/mcp"
        given: list[int] = []

        def headers() -> dict[str, str]:
            given.append(1)
            return {"X-Token": "secret"}

        server = McpServer("shop", url=url, headers=headers, init_timeout=INIT_S)
        with pytest.raises(McpUnavailable, match="ConnectError"):
            await server.link().tools()
        process = place.start_http(port)
        try:
            await listens(port)
            tools = await Toolbox([server]).tools(())
            assert "shop__order" in tools
            (first,) = await execute_batch([call("shop__order", sku="a")], tools, Recorder().env())
            assert first.content == "ordered a"
            process.kill()
            process.wait()
            (down,) = await execute_batch([call("shop__order", sku="b")], tools, Recorder().env())
            assert (down.error_type, down.effect) == ("mcp_unavailable", "none")
            process = place.start_http(port)
            await listens(port)
            (again,) = await execute_batch([call("shop__order", sku="c")], tools, Recorder().env())
            assert again.content == "ordered c"
            await server.close()
            assert len(given) >= 3, "headers are made for each connection"
        finally:
            process.kill()
            process.wait()

    asyncio.run(go())
    assert place.log == ["order a", "order c"]


def test_an_aborted_call_over_http_ends_at_the_server(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    port = free_port()

    async def go() -> None:
        process = place.start_http(port)
        try:
            await listens(port)
            url = f"http://127.0.0.1:{port}/mcp"
            server = McpServer("shop", url=url, init_timeout=INIT_S, timeout=0.5)
            tools = await Toolbox([server]).tools(())
            calls = [call("shop__wait"), call("shop__order", sku="a")]
            waited, ordered = await execute_batch(calls, tools, Recorder().env())
            assert (waited.status, waited.effect) == ("timeout", "unknown")
            assert ordered.status == "ok"
            await server.close()
        finally:
            process.kill()
            process.wait()

    asyncio.run(go())
    assert place.log == ["wait began", "wait cancelled", "order a"]
