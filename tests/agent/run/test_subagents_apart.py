"""Sub-agents that are cancelled, fail, or need people: what becomes of them and of the others.

Each agent speaks to the same strict fake; ``Stage.run`` checks that the conversation can go on.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import time
from typing import Any

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
from tests.agent.run.stage import Log, Stage, can_go_on, until

from treadle.sdk import chunks
from treadle.sdk.errors import UserError
from treadle.worker.agent.agent import Agent
from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.checkpoints import checkpoint
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.hooks import Hooks
from treadle.worker.agent.narrating import Narrator
from treadle.worker.agent.ports import MemoryInbox, Reply
from treadle.worker.agent.testing import error, stall_after, text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.agent.tools.policy import Policy
from treadle.worker.cancellation import CancelToken

# ------------------------------------------------------------------ cancelling


def test_cancelling_closes_the_sockets_of_all_sub_agents_within_300_ms_and_says_so() -> None:
    async def go() -> None:
        stalled = turn(text("a long answer"), fault=stall_after("content_block_delta"))
        roles = family(lead=lambda _, n: turn(*TWO), search=lambda *_: stalled)
        async with Stage(roles) as stage:
            searcher = agent(stage, "search")
            lead, token = agent(stage, "lead", subagents=[searcher]), CancelToken()
            running = asyncio.create_task(stage.run(lead, cancelled=token))
            await until(lambda: {e.path for e in stage.named("agent.message.delta")} >= {"a", "b"})
            at = time.monotonic()
            token.trip("cancelled")
            result = await running
            for request in (2, 3):
                closed = await asyncio.to_thread(stage.fake.wait_client_closed, request, 1)
                assert closed.client_closed_at is not None
                assert closed.client_closed_at - at < 0.3
            assert result.stop_reason == "cancelled"
            assert [e.path for e in stage.named("agent_run.cancelled")] == ["a", "b", ""]
            alive = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert alive == []
            results = result.state.messages[-1]["content"]
            assert [each["tool_use_id"] for each in results] == ["a", "b"]
            assert all("stopped with cancelled" in each["content"] for each in results)
            for path in "ab":
                child = fold(State(), entries_of(stage.entries, path))
                can_go_on(searcher, child)

    asyncio.run(go())


def test_cancelling_closes_what_lies_deeper_first() -> None:
    async def go() -> None:
        stalled = turn(text("a long answer"), fault=stall_after("content_block_delta"))
        roles = family(
            lead=lambda *_: turn(ask("middle", "Go.", "m")),
            middle=lambda *_: turn(ask("search", "Go.", "s"), tool_use("look", {"n": 1}, "l")),
            search=lambda *_: stalled,
        )
        async with Stage(roles) as stage:
            stops = Log()
            hooks = Hooks(on_stop=lambda stopped: stops(stopped.reason))
            searcher = agent(stage, "search", hooks=hooks)
            centre = agent(stage, "middle", tools=[look], subagents=[searcher], hooks=hooks)
            lead, token = agent(stage, "lead", subagents=[centre]), CancelToken()
            running = asyncio.create_task(stage.run(lead, cancelled=token))
            await until(lambda: "m/s" in {e.path for e in stage.named("agent.message.delta")})
            token.trip("cancelled")
            await running
            cancelled = [event.path for event in stage.named("agent_run.cancelled")]
            assert cancelled == ["m/s", "m", ""]
            assert stops.lines == ["cancelled", "cancelled"]
            child = fold(State(), entries_of(stage.entries, "m"))
            contents = {each["tool_use_id"]: each for each in child.messages[-1]["content"]}
            assert contents["l"]["content"] == "seen 1"
            assert "cancelled" in contents["s"]["content"]

    asyncio.run(go())


# ------------------------------------------------------------------ failures


@pytest.mark.parametrize("fault", [error(401), error(529)])
def test_a_sub_agent_whose_model_fails_fails_alone(fault: Any) -> None:
    async def go() -> None:
        def search(request: Any, n: int) -> Any:
            return fault if "Find a." in str(request.messages[0]) else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            lead = agent(stage, "lead", subagents=[agent(stage, "search")])
            result = await stage.run(lead)
            assert result.stop_reason == "completed"
            said = asked(stage, "lead")[1].messages[-1]["content"]
            assert said[0]["is_error"] and "stopped with failed" in said[0]["content"]
            assert said[1]["content"] == "found b."
            assert [event.path for event in stage.named("agent_run.failed")] == ["a"]

    asyncio.run(go())


def test_an_error_in_the_program_of_one_cancels_and_awaits_the_others() -> None:
    async def go() -> None:
        log, began = Log(), asyncio.Event()

        @tool(idempotent=True)
        async def wait() -> str:
            """Wait."""
            log("began")
            began.set()
            try:
                await asyncio.Event().wait()
            finally:
                log("ended")
            return ""

        async def broken(state: State) -> bool:
            await began.wait()
            raise ZeroDivisionError("a broken hook")

        roles = family(
            lead=lambda *_: turn(ask("wait", "Go.", "w"), ask("look", "Go.", "l")),
            wait=lambda *_: turn(tool_use("wait", {})),
            look=lambda *_: turn(tool_use("look", {"n": 1})),
        )
        async with Stage(roles) as stage:
            waiter = agent(stage, "wait", tools=[dataclasses.replace(wait, name="wait")])
            hooks = Hooks(should_stop_after_turn=broken)
            looker = agent(stage, "look", tools=[look], hooks=hooks)
            with pytest.raises(ZeroDivisionError):
                await stage.run(agent(stage, "lead", subagents=[waiter, looker]))
            assert log.lines == ["began", "ended"]
            alive = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert alive == []

    asyncio.run(go())


def test_what_an_agent_must_not_do_its_sub_agents_must_not_do_either() -> None:
    async def go() -> None:
        def search(request: Any, n: int) -> Any:
            return looking(request, n) if n == 0 else priced(text(str(request.tool_results)))

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[look])
            policy = Policy(forbidden={"look"})
            result = await stage.run(agent(stage, "lead", subagents=[searcher], policy=policy))
            assert "look is forbidden" in str(asked(stage, "lead")[1].tool_results["a"])
            assert result.used.tool_calls == 2

    asyncio.run(go())


# ------------------------------------------------------------------ people


def paying(log: Log) -> Any:
    @tool(requires_approval=True)
    async def pay(cents: int) -> str:
        """Pay."""
        log(cents)
        return f"paid {cents}"

    return pay


def test_calls_of_sub_agents_wait_for_people_by_the_calls_that_lead_to_them() -> None:
    async def go() -> None:
        log, inbox = Log(), MemoryInbox()

        def lead(request: Any, n: int) -> Any:
            return turn(*TWO, tool_use("pay", {"cents": 3}, "own")) if n == 0 else turn(text("ok"))

        def search(request: Any, n: int) -> Any:
            cents = 1 if "Find a." in str(request.messages[0]) else 2
            return turn(tool_use("pay", {"cents": cents}, "pay")) if n == 0 else find(request, n)

        async with Stage(family(lead=lead, search=search)) as stage:
            pay = paying(log)
            searcher = agent(stage, "search", tools=[pay])
            boss = agent(stage, "lead", tools=[pay], subagents=[searcher])
            result = await stage.run(boss, inbox=inbox)
            assert result.stop_reason == "needs_human"
            waiting = {call.id: call for call in result.waiting_for}
            assert set(waiting) == {"own", "a/pay", "b/pay"}
            told = [
                each["id"] for e in stage.named("agent_run.waiting") for each in e.fields["calls"]
            ]
            assert sorted(told) == ["a/pay", "b/pay", "own"]

            def reply(call_id: str, verdict: Any = "approve", args_hash: str = "") -> None:
                of = waiting[call_id].args_hash
                given = {"verdict": verdict, "args_hash": args_hash or of}
                inbox.reply(Reply(call_id=call_id, **given))

            # In any order; one without its path, or for other arguments, decides nothing.
            inbox.reply(
                Reply(call_id="pay", verdict="approve", args_hash=waiting["a/pay"].args_hash)
            )
            reply("a/pay", args_hash=waiting["b/pay"].args_hash)
            result = await stage.run(boss, "", state=result.state, inbox=inbox)
            assert len(result.waiting_for) == 3 and log.lines == []
            reply("b/pay")
            result = await stage.run(boss, "", state=result.state, inbox=inbox)
            assert {call.id for call in result.waiting_for} == {"own", "a/pay"}
            assert log.lines == [2]
            reply("own")
            reply("a/pay", "reject")
            result = await stage.run(boss, "", state=result.state, inbox=inbox)
            assert result.stop_reason == "completed"
            assert log.lines == [2, 3]
            assert asked(stage, "lead")[1].tool_results == {
                "a": "found a.",
                "b": "found b.",
                "own": "paid 3",
            }

    asyncio.run(go())


def test_a_sub_agent_that_waits_does_not_hold_the_others_up() -> None:
    async def go() -> None:
        def search(request: Any, n: int) -> Any:
            if "Find a." in str(request.messages[0]):
                return turn(tool_use("ask_human", {"question": "Which a?"}, "q"))
            return looking(request, n) if n < 3 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[look], ask_human=True)
            result = await stage.run(agent(stage, "lead", subagents=[searcher]))
            assert [call.id for call in result.waiting_for] == ["a/q"]
            assert [e.path for e in stage.named("agent_run.completed")] == ["b"]

    asyncio.run(go())


def test_the_time_in_which_a_sub_agent_waits_for_people_is_no_time_of_the_run() -> None:
    async def go() -> None:
        inbox, now = MemoryInbox(), [1_000]
        clock = {"clock": lambda: now[0], "inbox": inbox}

        def search(request: Any, n: int) -> Any:
            return turn(tool_use("pay", {"cents": 1}, "pay")) if n == 0 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[paying(Log())])
            budget = Budget(max_duration=datetime.timedelta(minutes=10))
            lead = agent(stage, "lead", subagents=[searcher], budget=budget)
            result = await stage.run(lead, **clock)
            assert [ask.id for ask in result.asks] == ["a/pay", "b/pay"]
            for ask in result.asks:
                now[0] += 86_400_000
                inbox.reply(Reply(call_id=ask.id, verdict="approve", args_hash=ask.args_hash))
                result = await stage.run(lead, "", state=result.state, **clock)
            assert result.stop_reason == "completed", result.detail
            assert result.state.elapsed_ms(now[0]) == 0

    asyncio.run(go())


def test_an_answer_that_cannot_be_taken_goes_back_with_the_question_of_the_sub_agent() -> None:
    async def go() -> None:
        inbox = MemoryInbox()

        def search(request: Any, n: int) -> Any:
            return turn(tool_use("pay", {"cents": 1}, "pay")) if n == 0 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[paying(Log())])
            lead = agent(stage, "lead", subagents=[searcher])
            result = await stage.run(lead, inbox=inbox)
            inbox.reply(Reply(call_id="a/pay", verdict="approve", args_hash="another"))
            result = await stage.run(lead, "", state=result.state, inbox=inbox)
            problems = {ask.id: ask.problem for ask in result.asks}
            assert "hash another" in problems["a/pay"] and problems["b/pay"] == ""
            (refused,) = stage.named("agent_run.answer_refused")
            assert refused.fields["id"] == "a/pay"

    asyncio.run(go())


def test_sub_agents_of_an_agent_that_may_only_read_may_only_read() -> None:
    async def go() -> None:
        log = Log()

        @tool
        async def write() -> str:
            """Write."""
            log("written")
            return "written"

        def search(request: Any, n: int) -> Any:
            return turn(tool_use("write", {}, "w")) if n == 0 else find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            searcher = agent(stage, "search", tools=[write])
            lead = agent(stage, "lead", subagents=[searcher], policy=Policy(read_only=True))
            for reader in (lead, agent(stage, "lead", subagents=[searcher]).read_only()):
                result = await stage.run(reader)
                assert result.stop_reason == "completed" and log.lines == []
            first, *_, last = asked(stage, "search")
            assert "write" in first.tool_names and "write" not in last.tool_names

    asyncio.run(go())


def test_the_words_of_sub_agents_are_no_words_of_the_agent_for_those_who_watch() -> None:
    async def go() -> None:
        said: list[Any] = []

        def say(chunk: Any) -> int:
            said.append(chunk)
            return len(said)

        async with Stage(family(lead=two, search=find)) as stage:
            lead = agent(stage, "lead", subagents=[agent(stage, "search")])
            await stage.run(lead, on_event=Narrator(say))
            words = "".join(each.text for each in said if isinstance(each, chunks.Text))
            assert words.startswith("a and b: ")
            tools = [each.id for each in said if isinstance(each, chunks.ToolEnded)]
            assert sorted(tools) == ["a", "b"]

    asyncio.run(go())


def test_handing_a_task_on_may_itself_need_approval() -> None:
    async def go() -> None:
        from treadle.worker.agent.tools.policy import Ask

        def rule(call: Any, state: Any) -> Any:
            return Ask() if call.name == "search" else None

        inbox = MemoryInbox()
        async with Stage(family(lead=two, search=find)) as stage:
            searcher = agent(stage, "search")
            lead = agent(stage, "lead", subagents=[searcher], policy=Policy(rule=rule))
            result = await stage.run(lead, inbox=inbox)
            assert [call.id for call in result.waiting_for] == ["a", "b"]
            assert asked(stage, "search") == []
            first, second = result.waiting_for
            inbox.reply(Reply(call_id="a", verdict="approve", args_hash=first.args_hash))
            inbox.reply(Reply(call_id="b", verdict="reject", args_hash=second.args_hash))
            result = await stage.run(lead, "", state=result.state, inbox=inbox)
            assert result.stop_reason == "completed"
            said = asked(stage, "lead")[1].tool_results
            assert said["a"] == "found a." and "rejected" in said["b"]

    asyncio.run(go())


def test_steering_is_for_the_agent_and_heard_when_its_sub_agents_have_ended() -> None:
    async def go() -> None:
        inbox = MemoryInbox()

        def search(request: Any, n: int) -> Any:
            inbox.steer("Mind the gap.")
            return find(request, n)

        async with Stage(family(lead=two, search=search)) as stage:
            lead = agent(stage, "lead", subagents=[agent(stage, "search")])
            await stage.run(lead, inbox=inbox)
            assert "Mind the gap." in asked(stage, "lead")[1].last_text
            assert all("gap" not in str(each.body) for each in asked(stage, "search"))

    asyncio.run(go())


def test_what_sub_agents_store_is_of_the_same_kinds_for_those_who_look_at_checkpoints() -> None:
    async def go() -> None:
        async with Stage(family(lead=two, search=find)) as stage:
            await stage.run(agent(stage, "lead", subagents=[agent(stage, "search")]))
            state, kinds = State(), list[str]()
            for number, entry in enumerate(stage.entries):
                made, state = checkpoint(number, 0, 1, [entry], state)
                kinds.append(made.kind)
            assert kinds.count("llm_response") == stage.fake.count == 4
            assert kinds.count("final") == 3
            assert "turn_end" in kinds

    asyncio.run(go())


# ------------------------------------------------------------------ what is refused


def test_a_tree_of_agents_is_bounded_in_depth_and_its_names_are_unique() -> None:
    def made(name: str, *subagents: Any, **options: Any) -> Agent[Any]:
        options = {"description": "Works.", "model": "anthropic:claude-test"} | options
        return Agent(name, subagents=subagents, **options)

    deep = made("one", made("two", made("three", made("four"))))
    assert deep.depth == 3
    with pytest.raises(UserError, match="3 at most"):
        made("zero", deep)
    with pytest.raises(UserError, match="the name of another tool"):
        made("lead", made("look"), tools=[look])
    with pytest.raises(UserError, match="the name of another tool"):
        made("lead", made("same"), made("same"))
    with pytest.raises(UserError, match="no description"):
        made("lead", made("silent", description=""))
    with pytest.raises(TypeError, match="no fields"):
        made("lead", made("typed", input_type=int))
