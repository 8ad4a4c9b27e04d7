"""Agents with MCP servers: what they are offered, what needs agreement, what counts as drift.

Method: a real MCP server, a strict fake of the model API; durable runs on a real NATS server."""

from __future__ import annotations

import asyncio
import shlex
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.agent.mcp.place import INIT_S, Place
from tests.agent.run.stage import QUICK, Stage

from treadle.sdk import Client, Retry, RunHandle, Workflow
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, McpServer, McpUnavailable, MemoryInbox, Reply, tool
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn
from treadle.worker.agent.tools.canonical import args_hash
from treadle.worker.agent.tools.errors import InvalidTool

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


def test_the_model_is_offered_the_tools_and_gets_their_results(place: Place) -> None:
    async def go() -> None:
        turns = [turn(tool_use("shop__order", {"sku": "a"}, id="one")), turn(text("Done."))]
        async with Stage(turns) as stage:
            server = place.server(tools=["look_up", "order"])
            agent = stage.agent(mcp=[server], journal=False)
            result = await stage.run(agent)
            assert result.stop_reason == "completed"
            offered = stage.fake.requests[0].tool_names
            assert offered == ["shop__look_up", "shop__order", "read_output"]
            assert stage.fake.requests[1].tool_results["one"] == "ordered a"
            await agent.close()

    asyncio.run(go())
    assert place.log == ["order a"]


def test_a_call_that_needs_agreement_waits_for_it(place: Place) -> None:
    async def go() -> None:
        turns = [turn(tool_use("shop__order", {"sku": "a"}, id="one")), turn(text("Done."))]
        async with Stage(turns) as stage:
            agent = stage.agent(mcp=[place.server(requires_approval=["order"])])
            result = await agent.run("Go.")
            assert result.stop_reason == "needs_human"
            assert place.log == []
            (asked,) = result.waiting_for
            inbox = MemoryInbox()
            inbox.reply(Reply(call_id="one", verdict="approve", args_hash=asked.args_hash))
            result = await agent.run(state=result.state, inbox=inbox)
            assert result.stop_reason == "completed"
            await agent.close()

    asyncio.run(go())
    assert place.log == ["order a"]


def test_a_tool_is_idempotent_only_if_the_user_says_so(place: Place) -> None:
    async def idempotent(**options: Any) -> set[str]:
        server = place.server(**options)
        agent = Agent("tester", model=AnthropicModel("m", api_key="k"), mcp=[server])
        equipment = await agent.prepared()
        await agent.close()
        return {name for name, tool in equipment.tools.items() if tool.idempotent}

    assert asyncio.run(idempotent()) == set()
    assert asyncio.run(idempotent(trust_annotations=True)) == {"shop__look_up"}
    assert asyncio.run(idempotent(idempotent=["order"])) == {"shop__order"}


def test_an_agent_that_may_change_nothing_is_offered_what_changes_nothing(place: Place) -> None:
    async def go() -> None:
        server = place.server(read_only=["look_up"], idempotent=["order"])
        agent = Agent("tester", model=AnthropicModel("m", api_key="k"), mcp=[server])
        everything = await agent.prepared()
        reader = await agent.read_only().prepared()
        assert len(everything.tools) > 5
        assert [*reader.tools] == ["shop__look_up"]
        assert [spec.name for spec in reader.spec.tools if "__" in spec.name] == ["shop__look_up"]
        await agent.close()

    asyncio.run(go())


@tool(name="shop__order")
def own(sku: str) -> str:
    """Has the name of a server's tool."""
    return sku


@pytest.mark.parametrize(
    ("options", "tools", "fault"),
    [
        ({"requires_approval": ["ordr"]}, [], "no such tool. Did you mean 'order'?"),
        ({"tools": ["sell"]}, [], "tools names 'sell'"),
        ({}, [own], "the agent has an own tool of this name"),
    ],
)
def test_what_cannot_be_offered_is_named(
    place: Place, options: dict[str, Any], tools: list[Any], fault: str
) -> None:
    async def go() -> None:
        model = AnthropicModel("m", api_key="k")
        agent = Agent("tester", model=model, tools=tools, mcp=[place.server(**options)])
        try:
            with pytest.raises(InvalidTool) as caught:
                await agent.prepared()
            assert fault in str(caught.value)
        finally:
            await agent.close()

    asyncio.run(go())


def test_two_servers_of_one_name_are_refused(place: Place) -> None:
    with pytest.raises(UserError, match="share the name shop"):
        Agent("tester", model="anthropic:m", mcp=[place.server(), place.server()])


def test_the_list_is_asked_for_once_and_again_when_the_server_says_so(place: Place) -> None:
    async def go() -> None:
        async with Stage([]) as stage:
            agent = stage.agent(mcp=[place.server()])
            first = await agent.prepared()
            assert (await agent.prepared()).spec is first.spec
            server = agent._toolbox._servers[0]  # pyright: ignore[reportPrivateUsage]
            await server.link().ask(lambda client: client.call_tool("grow", {}))
            server.link()._current.changed()  # pyright: ignore
            second = await agent.prepared()
            assert "shop__extra" in second.tools
            assert second.spec.versions.drift(first.spec.versions) == ("tools",)
            await agent.close()

    asyncio.run(go())


def test_without_the_extra_the_error_says_what_to_install(tmp_path: Path) -> None:
    script = tmp_path / "without.py"
    script.write_text(
        "import asyncio, sys\n"
        "sys.modules['mcp'] = None\n"
        "from treadle.worker.agent import Agent, McpServer\n"
        "agent = Agent('a', model='anthropic:m', mcp=[McpServer('s', url='http://127.0.0.1:1')])\n"
        "asyncio.run(agent.run('Go.'))\n"
    )
    ran = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    assert ran.returncode == 1
    assert "pip install 'treadle[mcp]'" in ran.stderr


def test_a_server_that_is_down_fails_the_run_of_this_process_at_once() -> None:
    async def go() -> None:
        async with Stage([]) as stage:
            agent = stage.agent(mcp=[McpServer("shop", command=["no-such-program"])])
            with pytest.raises(McpUnavailable):
                await agent.run("Go.")
            assert stage.fake.count == 0

    asyncio.run(go())


SEEN = args_hash({"sku": "0"})


def orders(request: RecordedRequest) -> Turn:
    """Order, in two turns, and end."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    if answers < 2:
        return turn(tool_use("shop__order", {"sku": str(answers)}, id=f"order{answers}"))
    return turn(text("Ordered."))


@asynccontextmanager
async def served(
    settings: Settings, fake: FakeAnthropic, server: McpServer
) -> AsyncGenerator[RunHandle]:
    """Run the agent durably, with the server; give a run that has been started."""
    model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="k")
    worker = Worker("buyer")
    worker.agent("buy-agent", Agent("buyer", model=model, mcp=[server], model_retry=QUICK))
    workflow = Workflow("purchases")
    retry = Retry(max_attempts=100, backoff="fixed", delay_s=0.1)
    workflow.agent_loop("buy", "buy-agent", max_iterations=20, retry=retry)
    try:
        async with (
            local(worker, workflows=[workflow], url=settings.url, namespace=settings.namespace),
            Client.connect(settings=settings) as client,
        ):
            yield await client.start("purchases", "Order.", id="run")
    finally:
        await model.close()


def test_a_durable_run_goes_on_when_its_server_is_there_and_leaves_none_behind(
    place: Place, settings: Settings, tmp_path: Path
) -> None:
    command = tmp_path / "shop"

    async def go() -> None:
        with FakeAnthropic(orders) as fake:
            async with served(settings, fake, place.server(command=[str(command)])) as run:
                while (await run.get()).step("buy").attempt < 2:
                    await asyncio.sleep(0.02)
                assert fake.count == 0, "no turn is begun without its tools"
                command.write_text(f"#!/bin/sh\nexec {shlex.join(place.command())}\n")
                command.chmod(0o755)
                assert await asyncio.wait_for(run.result(), INIT_S) == "Ordered."
                assert len(place.pids) == 1, "one connection for all turns"
            assert place.alive == [], "a worker that stops takes its servers with it"

    asyncio.run(go())
    assert place.log == ["order 0", "order 1"]


def test_a_run_waits_for_a_person_when_the_tools_of_a_server_have_changed(
    place: Place, settings: Settings
) -> None:
    async def go() -> None:
        with FakeAnthropic(orders) as fake:
            server = place.server(requires_approval=["order"])
            async with served(settings, fake, server) as run:
                while (await run.get()).status != "parked":
                    await asyncio.sleep(0.02)
                place.add_tool()
                await server.close()
                answer = {"call_id": "order0", "verdict": "approve", "args_hash": SEEN}
                await run.send("buy", answer, kind="reply", id="m1")
                async with asyncio.timeout(INIT_S):
                    while not any("tools changed" in note.text for note in (await run.get()).notes):
                        await asyncio.sleep(0.02)
                assert fake.count == 1

    asyncio.run(go())
    assert place.log == []
