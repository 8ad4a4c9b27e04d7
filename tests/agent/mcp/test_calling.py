"""What a call of an MCP tool comes to. Method: a real server over its standard streams, and the
executor that agents use; one server serves all results."""

from __future__ import annotations

import asyncio
import shlex
from pathlib import Path
from typing import Any

import pytest
from tests.agent.mcp.place import Place
from tests.agent.tools.stage import Recorder, call

from treadle.worker.agent.core.calls import ToolResult
from treadle.worker.agent.mcp.toolbox import Toolbox
from treadle.worker.agent.tools.env import ToolProgress
from treadle.worker.agent.tools.executing import execute_batch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, ToolResult]:
    place = Place(tmp_path_factory.mktemp("mcp"))

    async def go() -> dict[str, ToolResult]:
        server = place.server(trust_annotations=True)
        tools = await Toolbox([server]).tools(())
        made: dict[str, Any] = {"look_up": {"sku": "a"}, "order": {"sku": "b"}}
        names = ("look_up", "refuse", "order", "fail", "picture", "long")
        calls = [call(f"shop__{name}", f"id_{name}", **made.get(name, {})) for name in names]
        try:
            found = await execute_batch(calls, tools, Recorder().env())
            assert len(place.pids) == 1
        finally:
            await server.close()
        return {result.id.removeprefix("id_"): result for result in found}

    found = asyncio.run(go())
    assert place.alive == []
    return found


def test_structured_data_is_shown_once_as_text(results: dict[str, ToolResult]) -> None:
    assert results["look_up"].status == "ok"
    assert results["look_up"].content == '{\n  "sku": "a",\n  "left": 3\n}'
    assert results["look_up"].effect == "none"


def test_a_text_is_the_result_of_a_call_that_has_acted(results: dict[str, ToolResult]) -> None:
    assert (results["order"].content, results["order"].effect) == ("ordered b", "committed")


def test_an_error_of_the_server_is_one_for_the_model(results: dict[str, ToolResult]) -> None:
    assert results["fail"].is_error
    assert "out of order" in str(results["fail"].content)


def test_an_error_of_the_protocol_is_one_for_the_model_and_ends_no_connection(
    results: dict[str, ToolResult],
) -> None:
    assert results["refuse"].is_error
    assert "no such shop" in str(results["refuse"].content)


def test_an_image_reaches_the_model_as_an_image(results: dict[str, ToolResult]) -> None:
    (block,) = results["picture"].content
    assert isinstance(block, dict)
    assert block["type"] == "image"
    assert block["source"]["media_type"] == "image/png"


def test_a_long_result_is_cut(results: dict[str, ToolResult]) -> None:
    assert results["long"].full_bytes == 100_000
    assert len(results["long"].content) <= 64 * 1024


def test_progress_is_reported_and_an_aborted_call_is_not_made_again(place: Place) -> None:
    async def go() -> None:
        server, recorder = place.server(), Recorder()
        tools = await Toolbox([server]).tools(())
        env = recorder.env()
        waiting = asyncio.create_task(execute_batch([call("shop__wait")], tools, env))
        async with asyncio.timeout(10):
            while not any(isinstance(event, ToolProgress) for event in recorder.events):
                await asyncio.sleep(0.01)
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        (aborted,) = recorder.settled
        assert (aborted.status, aborted.effect) == ("cancelled", "unknown")
        (ordered,) = await execute_batch([call("shop__order", sku="b")], tools, recorder.env())
        assert ordered.status == "ok"
        await server.close()

    asyncio.run(go())
    assert place.log == ["wait began", "wait cancelled", "order b"]
    assert len(place.pids) == 2


def test_a_call_that_takes_too_long_is_timed_out(place: Place) -> None:
    async def go() -> None:
        server = place.server(timeout=0.5)
        tools = await Toolbox([server]).tools(())
        (result,) = await execute_batch([call("shop__wait")], tools, Recorder().env())
        assert (result.status, result.effect) == ("timeout", "unknown")
        await server.close()

    asyncio.run(go())
    assert place.log == ["wait began", "wait cancelled"]


def test_a_server_that_dies_in_a_call_leaves_its_effect_unknown(place: Place) -> None:
    async def go() -> None:
        server = place.server()
        tools = await Toolbox([server]).tools(())
        calls = [call("shop__die"), call("shop__order", sku="b")]
        died, ordered = await execute_batch(calls, tools, Recorder().env())
        assert (died.error_type, died.effect) == ("mcp_connection_lost", "unknown")
        assert "the server has closed it" in str(died.content)
        assert ordered.status == "ok"
        await server.close()

    asyncio.run(go())
    assert place.log == ["die", "order b"]


def test_a_call_that_may_be_repeated_is_repeated_over_a_new_connection(place: Place) -> None:
    async def go() -> None:
        server, recorder = place.server(idempotent=["die"]), Recorder()
        tools = await Toolbox([server]).tools(())
        (died,) = await execute_batch([call("shop__die")], tools, recorder.env())
        assert (died.attempts, died.effect) == (3, "none")
        await server.close()

    asyncio.run(go())
    assert place.log == ["die"] * 3


def test_a_call_to_a_server_that_cannot_be_started_has_no_effect(
    place: Place, tmp_path: Path
) -> None:
    async def go() -> None:
        command = tmp_path / "command"
        command.write_text(f"#!/bin/sh\nexec {shlex.join(place.command())}\n")
        command.chmod(0o755)
        server = place.server(command=[str(command)])
        tools = await Toolbox([server]).tools(())
        await server.close()
        command.unlink()
        (result,) = await execute_batch([call("shop__order", sku="b")], tools, Recorder().env())
        assert (result.error_type, result.effect) == ("mcp_unavailable", "none")
        assert "there is no program" in str(result.content)

    asyncio.run(go())
    assert place.log == []
