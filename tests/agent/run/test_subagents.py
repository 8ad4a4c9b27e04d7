"""Sub-agents in one process: side by side, and within one budget.

Each agent speaks to the same strict fake; ``Stage.run`` checks that the conversation can go on.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pydantic
import pytest
from tests.agent.run.family import (
    TWO,
    agent,
    ask,
    asked,
    entries_of,
    family,
    find,
    look,
    looking,
    priced,
    two,
)
from tests.agent.run.stage import Log, Stage, until

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.testing import Gate, stall_after, text, tool_use, turn
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import tool

# ------------------------------------------------------------------ the way it should go


def test_two_sub_agents_of_one_answer_work_side_by_side_and_answer_in_its_order() -> None:
    async def go() -> None:
        gates = [Gate(), Gate()]

        def slowly(request: Any, n: int) -> Any:
            gate = gates["Find b." in request.last_text]
            return priced(
                text(request.last_text), fault=stall_after("content_block_start", gate=gate)
            )

        async with Stage(family(lead=two, search=slowly)) as stage:
            lead = agent(stage, "lead", subagents=[agent(stage, "search")])
            running = asyncio.create_task(stage.run(lead))
            for gate in gates:
                await asyncio.to_thread(gate.wait_reached)
            gates[1].open()
            await until(lambda: [e for e in stage.named("agent_run.completed") if e.path == "b"])
            gates[0].open()
            result = await running
            assert result.stop_reason == "completed"
            content = asked(stage, "lead")[1].messages[-1]["content"]
            ids = [block["tool_use_id"] for block in content]
            assert ids == ["a", "b"]
            assert [block["content"] for block in content] == ["Find a.", "Find b."]

    asyncio.run(go())


def test_what_sub_agents_use_counts_once_for_the_agent_that_called_them() -> None:
    async def go() -> None:
        prices = PriceTable({"claude": Price(input=1.0, output=2.0)})

        def search(request: Any, n: int) -> Any:
            return looking(request, n) if n < 2 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[look])
            lead = agent(stage, "lead", subagents=[searcher], prices=prices)
            result = await stage.run(lead)
            used = result.used
            assert used.steps == stage.fake.count == 2 + 2 * 3
            assert used.tool_calls == 2 + 2 * 2
            assert (used.usage.input_tokens, used.usage.output_tokens) == (80, 40)
            # The sub-agent has no prices of its own.
            assert used.cost_micro_usd == 80 * 1 + 40 * 2
            assert result.state.children == {}

    asyncio.run(go())


def test_plain_tools_beside_a_sub_agent_run_first_and_all_results_come_together() -> None:
    async def go() -> None:
        def mixed(request: Any, n: int) -> Any:
            if n == 0:
                return priced(TWO[0], tool_use("look", {"n": 7}, "l"))
            return priced(text("done"))

        async with Stage(family(lead=mixed, search=find)) as stage:
            lead = agent(stage, "lead", tools=[look], subagents=[agent(stage, "search")])
            await stage.run(lead)
            assert asked(stage, "lead")[1].tool_results == {"a": "found a.", "l": "seen 7"}
            ended = [(event.fields["id"]) for event in stage.named("agent.tool.ended")]
            assert ended == ["l", "a"]

    asyncio.run(go())


def test_a_sub_agent_is_offered_by_its_name_description_and_input() -> None:
    class Query(pydantic.BaseModel):
        words: list[str]
        limit: int = 3

    async def go() -> None:
        def lead(request: Any, n: int) -> Any:
            given = ({"words": "x"}, {"words": ["x"], "more": 1}, {"words": ["x"]})
            return turn(tool_use("search", given[n])) if n < 3 else turn(text("done"))

        async with Stage(family(lead=lead, search=find)) as stage:
            searcher = agent(stage, "search", input_type=Query)
            await stage.run(agent(stage, "lead", subagents=[searcher]))
            first, second, third, last = asked(stage, "lead")
            (offered,) = [each for each in first.body["tools"] if each["name"] == "search"]
            assert offered["description"] == "Does search's work."
            assert offered["input_schema"]["required"] == ["words"]
            # A bare text where a list is wanted is mended; what nobody asked for goes back.
            goals = [each.messages[0]["content"][0]["text"] for each in asked(stage, "search")]
            assert ['"x"' in goal for goal in goals] == [True, True]
            assert "more: Extra inputs are not permitted" in str(third.tool_results)
            assert not any("Extra" in str(each.tool_results) for each in (second, last))

    asyncio.run(go())


def test_sub_agents_may_have_sub_agents_and_the_keys_of_their_calls_are_their_own() -> None:
    async def go() -> None:
        keys = Log()

        @tool
        async def note(ctx: ToolContext[Any]) -> str:
            """Note something."""
            keys(ctx.idempotency_key)
            return "noted"

        def middle(request: Any, n: int) -> Any:
            return priced(ask("search", "Find c.", "same")) if n == 0 else find(request, n)

        def noting(request: Any, n: int) -> Any:
            return priced(tool_use("note", {}, "same")) if n == 0 else find(request, n)

        def lead(request: Any, n: int) -> Any:
            calls = (ask("middle", f"Find {task}.", task) for task in "ab")
            return priced(*calls) if n == 0 else priced(text("done"))

        async with Stage(family(lead=lead, middle=middle, search=noting)) as stage:
            searcher = agent(stage, "search", tools=[note])
            centre = agent(stage, "middle", subagents=[searcher])
            result = await stage.run(agent(stage, "lead", subagents=[centre]), id="r")
            assert result.used.steps == stage.fake.count == 2 + 2 * 2 + 2 * 2
            assert result.used.tool_calls == 2 + 2 + 2
            assert sorted(keys.lines) == ["r:lead/a/same:same", "r:lead/b/same:same"]
            assert {event.path for event in stage.events} == {"", "a", "b", "a/same", "b/same"}

    asyncio.run(go())


# ------------------------------------------------------------------ one budget


@pytest.mark.parametrize("on_limit", ["fail", "wrap_up"])
def test_turns_of_sub_agents_use_up_the_bound_of_the_agent_and_all_stop(on_limit: Any) -> None:
    async def go() -> None:
        def lead(request: Any, n: int) -> Any:
            return priced(*TWO) if n == 0 else priced(text("what there is"))

        async with Stage(family(lead=lead, search=looking)) as stage:
            searcher = agent(stage, "search", tools=[look])
            budget = Budget(max_steps=6)
            options = {"budget": budget, "on_limit": on_limit, "subagents": [searcher]}
            result = await stage.run(agent(stage, "lead", **options))
            assert result.stop_reason == "max_steps"
            # Exactly: of the two, one alone took the last turn that was left.
            assert len(asked(stage, "search")) == 5
            assert stage.fake.count == (7 if on_limit == "wrap_up" else 6)
            for path in "ab":
                (stopped,) = [
                    each for each in entries_of(stage.entries, path) if isinstance(each, Stopped)
                ]
                assert stopped.reason == "max_steps" and "lead" in stopped.detail
            told = {e.path: e.fields["reason"] for e in stage.named("agent_run.stopped")}
            assert told == {"a": "max_steps", "b": "max_steps", "": "max_steps"}
            if on_limit == "wrap_up":
                assert result.output == "what there is"
                assert "stopped with max_steps" in str(asked(stage, "lead")[1].messages)

    asyncio.run(go())


@pytest.mark.parametrize(
    ("budget", "reason"),
    [
        (Budget(max_total_tokens=60), "max_tokens"),
        (Budget(max_output_tokens=20), "max_tokens"),
        (Budget(max_cost_usd=0.000_080), "max_cost"),
    ],
)
def test_tokens_and_money_of_sub_agents_stop_the_whole_run(budget: Budget, reason: str) -> None:
    async def go() -> None:
        async with Stage(family(lead=two, search=looking)) as stage:
            searcher = agent(stage, "search", tools=[look])
            prices = PriceTable({"claude": Price(input=1.0, output=2.0)})
            options = {"budget": budget, "prices": prices, "on_limit": "fail"}
            result = await stage.run(agent(stage, "lead", subagents=[searcher], **options))
            assert result.stop_reason == reason
            # One answer of the lead and two rounds of two: no bound is passed by more than a round.
            assert stage.fake.count in (4, 5)

    asyncio.run(go())


def test_two_sub_agents_cannot_both_make_the_last_tool_call() -> None:
    async def go() -> None:
        log = Log()

        @tool(idempotent=True)
        async def dig(n: int) -> str:
            """Dig."""
            log(n)
            return "earth"

        def digging(request: Any, n: int) -> Any:
            calls = [tool_use("dig", {"n": m}) for m in range(3)]
            return priced(*calls) if n == 0 else priced(text("dug"))

        async with Stage(family(lead=two, search=digging)) as stage:
            searcher = agent(stage, "search", tools=[dig])
            lead = agent(stage, "lead", subagents=[searcher], budget=Budget(max_tool_calls=6))
            result = await stage.run(lead)
            assert len(log.lines) == 6 - 2
            assert result.used.tool_calls == 6
            refused = [
                content
                for request in asked(stage, "search")[2:]
                for content in request.tool_results.values()
                if "used up" in content
            ]
            assert len(refused) == 2

    asyncio.run(go())


def test_a_sub_agent_at_its_own_bound_gives_what_it_has_and_the_agent_goes_on() -> None:
    async def go() -> None:
        def search(request: Any, n: int) -> Any:
            return looking(request, n) if n < 2 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[look], budget=Budget(max_steps=2))
            result = await stage.run(agent(stage, "lead", subagents=[searcher]))
            assert result.stop_reason == "completed"
            said = asked(stage, "lead")[1].tool_results
            assert "found a." in said["a"] and "max_steps" in said["a"]

    asyncio.run(go())


def test_a_share_of_the_turns_that_sub_agents_pass_is_told_after_them() -> None:
    async def go() -> None:
        def search(request: Any, n: int) -> Any:
            return looking(request, n) if n < 2 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[look])
            await stage.run(agent(stage, "lead", subagents=[searcher], budget=Budget(max_steps=10)))
            assert "7 of 10 turns are used; 3 are left" in asked(stage, "lead")[1].last_text

    asyncio.run(go())


def test_agents_of_a_sequential_agent_work_one_after_the_other() -> None:
    async def go() -> None:
        async with Stage(family(lead=two, search=looking)) as stage:
            searcher = agent(stage, "search", tools=[look], budget=Budget(max_steps=2))
            await stage.run(agent(stage, "lead", subagents=[searcher], sequential=True))
            tasks = [
                request.messages[0]["content"][0]["text"] for request in asked(stage, "search")
            ]
            assert tasks == sorted(tasks) and len(set(tasks)) == 2

    asyncio.run(go())
