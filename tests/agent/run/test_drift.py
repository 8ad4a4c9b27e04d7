"""A run that goes on with another version of its agent: it stops first, and a person decides.

In memory by ``state=``, durable by another worker; the fake shows what the model was asked.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.run.stage import Stage, blocks, said

from treadle.sdk import Client, Workflow
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent
from treadle.worker.agent.core.kept import READ
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool


@tool(idempotent=True)
async def look() -> str:
    """Look."""
    return "seen"


@tool(idempotent=True)
async def add(a: int) -> int:
    """Add."""
    return a


@pytest.mark.parametrize(
    ("changed", "what"),
    [({"instructions": "Be rude."}, "prompt"), ({"tools": [look]}, "tools")],
)
def test_a_state_of_an_older_agent_stops_with_the_reason_until_a_message_accepts_it(
    changed: dict[str, Any], what: str
) -> None:
    async def go() -> None:
        async with Stage([turn(text("one"))]) as stage:
            old = stage.agent(**{"instructions": "Be polite."})
            new = stage.agent(**{"instructions": "Be polite.", **changed})
            first = await stage.run(old)
            stopped = await stage.run(new, "And now?", state=first.state)
            assert stopped.stop_reason == "needs_human"
            assert f"the agent's {what} changed since this run began" in stopped.detail
            assert "Send a message to go on" in stopped.detail
            assert stage.fake.count == 1, "nothing was asked"
            assert stage.named("agent_run.resume_unsafe")[0].fields == {"drift": [what]}
            stage.fake.extend(turn(text("two")), turn(text("three")))
            accepted = await stage.run(new, "And now?", state=stopped.state)
            assert accepted.output == "two"
            assert "And now?" in said(stage.fake.requests[-1].messages[-1])
            again = await stage.run(new, "Once more.", state=accepted.state)
            assert again.output == "three", "accepted once is accepted"

    asyncio.run(go())


@pytest.mark.parametrize("others", [[], [add]])
def test_a_tool_that_was_taken_away_stays_declared_as_the_transcript_names_it(
    others: list[Any],
) -> None:
    async def go() -> None:
        async with Stage([turn(tool_use("look", {}, id="l")), turn(text("one"))]) as stage:
            first = await stage.run(stage.agent(tools=[look, *others], journal=False))
            without = stage.agent(tools=others, journal=False)
            stopped = await stage.run(without, "Look again.", state=first.state)
            assert stopped.stop_reason == "needs_human"
            stage.fake.extend(turn(tool_use("look", {}, id="m")), turn(text("two")))
            accepted = await stage.run(without, "Look again.", state=stopped.state)
            assert accepted.output == "two"
            third, fourth = stage.fake.requests[2:]
            for request in (third, fourth):
                assert next(use["id"] for use in blocks(request, "tool_use")) == "l"
                declared = {each["name"]: each["description"] for each in request.body["tools"]}
                own = [name for name in declared if name != READ]
                assert own == [*(each.name for each in others), "look"]
                assert "not available any more" in declared["look"]
            assert "There is no tool 'look', so nothing ran." in fourth.tool_results["m"]
            assert accepted.used.tool_calls == 1
            # The tool is given back: its own description stands, and it runs.
            stage.fake.extend(turn(tool_use("look", {}, id="n")), turn(text("three")))
            back = stage.agent(tools=[look, *others], journal=False)
            asked = await stage.run(back, "Once more.", state=accepted.state)
            again = await stage.run(back, "Once more.", state=asked.state)
            assert again.output == "three"
            assert stage.fake.requests[-1].tool_results["n"] == "seen"
            assert [each["name"] for each in stage.fake.requests[-1].body["tools"]] == [
                each["name"] for each in stage.fake.requests[0].body["tools"]
            ]

    asyncio.run(go())


def test_a_state_of_the_same_agent_goes_on_at_once() -> None:
    async def go() -> None:
        async with Stage([turn(text("one")), turn(text("two"))]) as stage:
            first = await stage.run(stage.agent(instructions="Be polite."))
            second = await stage.run(
                stage.agent(instructions="Be polite."), "And?", state=first.state
            )
            assert second.output == "two"
            (resumed,) = stage.named("agent_run.resumed")
            assert resumed.fields["entries"] == first.state.entries

    asyncio.run(go())


def test_a_durable_run_waits_for_a_person_when_its_agent_has_changed(settings: Settings) -> None:
    workflow = Workflow("drifting")
    workflow.agent_loop("loop", "asker", max_iterations=9)

    async def story() -> None:
        with FakeAnthropic([turn(tool_use("ask_human", {"question": "?"}, id="q"))]) as fake:
            model = AnthropicModel("claude-test", base_url=fake.base_url, api_key="none")

            def serving(instructions: str) -> Any:
                worker = Worker("w")
                agent = Agent("asker", model=model, instructions=instructions, ask_human=True)
                worker.agent("asker", agent)
                place = {"url": settings.url, "namespace": settings.namespace}
                return local(worker, workflows=[workflow], **place)

            async def noted(client: Client, words: str) -> None:
                async with asyncio.timeout(20):
                    while not any(words in note.text for note in (await client.get("drift")).notes):
                        await asyncio.sleep(0.02)

            async with serving("Be polite.") as client:
                await client.start("drifting", "Go.", id="drift")
                await noted(client, "asks ?")
            async with serving("Be rude.") as client:
                reply = {"call_id": "q", "verdict": "answer", "text": "Yes."}
                await client.handle("drift").send("loop", reply, kind="reply", id="r")
                await noted(client, "the agent's prompt changed")
                assert fake.count == 1
                fake.extend(turn(text("done")))
                await client.handle("drift").send("loop", "Go on as you are.", id="m")
                assert await asyncio.wait_for(client.handle("drift").result(), 20) == "done"
            await model.close()

    asyncio.run(story())
