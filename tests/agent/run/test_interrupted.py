"""A process that dies in the middle of a batch: what runs again, what does not, and who decides.

The journal refuses a result, as if the process had died before it was stored; another run goes on
from what had been stored.
"""

from __future__ import annotations

import asyncio
import datetime
from collections.abc import Sequence
from typing import Any

import pytest
from tests.agent.run.stage import Log, Stage, kinds

from treadle.sdk.asks import Reply
from treadle.worker.agent.core.entries import Entry, Settled, Started, Switched, TurnEnded
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.hooks import Hooks, NextTurn
from treadle.worker.agent.ports import MemoryInbox, MemoryJournal
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import tool


class Dies(Exception):
    """The process is gone."""


class DyingJournal(MemoryJournal):
    """Dies instead of storing the result of a tool."""

    def __init__(self, at: str, entries: Sequence[Entry] = ()) -> None:
        super().__init__()
        self.at = at
        self.entries = list(entries)

    async def append(self, entries: Sequence[Entry]) -> None:
        if any(isinstance(each, Settled) and each.result.name == self.at for each in entries):
            raise Dies
        await super().append(entries)


PAY = tool_use("pay", {"cents": 5})


def paying(log: Log, **options: Any) -> Any:
    @tool(**options)
    async def pay(ctx: ToolContext[Any], cents: int) -> str:
        """Pay."""
        log(ctx.idempotency_key)
        return f"paid {cents}"

    return pay


async def dying(stage: Stage, agent: Any, at: str = "pay", **options: Any) -> State:
    journal = DyingJournal(at)
    with pytest.raises(Dies):
        await stage.run(agent, journal=journal, **options)
    return fold(State(), journal.entries)


async def going_on(stage: Stage, agent: Any, state: State, *replies: Reply, **options: Any) -> Any:
    inbox = MemoryInbox()
    for reply in replies:
        inbox.reply(reply)
    return await stage.run(agent, "", state=state, inbox=inbox, **options)


def test_an_idempotent_call_without_a_result_runs_again() -> None:
    async def go() -> None:
        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[paying(log, idempotent=True)])
            result = await going_on(stage, agent, await dying(stage, agent))
            assert result.stop_reason == "completed"
            # With the key of the first time, so that the other side can tell.
            assert len(log.lines) == 2 and len(set(log.lines)) == 1
            assert stage.fake.count == 2

    asyncio.run(go())


@pytest.mark.parametrize(
    ("verdict", "runs", "shown"),
    [("answer", 1, "It was paid."), ("approve", 2, "paid 5"), ("reject", 1, "rejected")],
)
def test_a_call_that_may_have_run_and_must_not_run_twice_is_decided_by_a_person(
    verdict: Any, runs: int, shown: str
) -> None:
    async def go() -> None:
        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[paying(log)])
            asked = await going_on(stage, agent, await dying(stage, agent))
            assert asked.stop_reason == "needs_human"
            (call,) = asked.waiting_for
            assert call.decision == "uncertain" and "must not run twice" in call.reason
            assert stage.named("agent_run.resume_unsafe")
            assert len(log.lines) == 1
            reply = Reply(
                call_id=call.id, verdict=verdict, args_hash=call.args_hash, text="It was paid."
            )
            told = len(stage.named("agent_run.resume_unsafe"))
            result = await going_on(stage, agent, asked.state, reply)
            assert result.stop_reason == "completed"
            assert len(log.lines) == runs
            (content,) = stage.fake.requests[1].tool_results.values()
            assert shown in content
            assert len(stage.named("agent_run.resume_unsafe")) == told

    asyncio.run(go())


@pytest.mark.parametrize(("found", "runs"), [("paid before", 1), (None, 2)])
def test_a_tool_that_can_find_out_decides_by_itself(found: Any, runs: int) -> None:
    async def go() -> None:
        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[paying(log, reconcile=lambda ctx, args: found)])
            result = await going_on(stage, agent, await dying(stage, agent))
            assert result.stop_reason == "completed"
            assert len(log.lines) == runs
            (content,) = stage.fake.requests[1].tool_results.values()
            assert content == (found or "paid 5")

    asyncio.run(go())


def test_only_the_call_without_a_result_is_looked_at_and_both_results_are_sent_as_one() -> None:
    async def go() -> None:
        log = Log()

        @tool(idempotent=True, sequential=True)
        async def look() -> str:
            """Look."""
            log("looked")
            return "seen"

        async with Stage([turn(tool_use("look", {}), PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[look, paying(log, idempotent=True)])
            await going_on(stage, agent, await dying(stage, agent))
            assert log.count("looked") == 1
            content = stage.fake.requests[1].messages[-1]["content"]
            assert [each["content"] for each in content] == ["seen", "paid 5"]

    asyncio.run(go())


def test_an_approval_is_for_one_run_of_the_call_and_not_for_another_after_a_crash() -> None:
    async def go() -> None:
        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[paying(log, requires_approval=True)])
            waiting = await stage.run(agent)
            (call,) = waiting.waiting_for
            reply = Reply(call_id=call.id, verdict="approve", args_hash=call.args_hash)
            inbox = MemoryInbox()
            inbox.reply(reply)
            journal = DyingJournal("pay", stage.journal.entries)
            with pytest.raises(Dies):
                await stage.run(agent, "", state=waiting.state, journal=journal, inbox=inbox)
            assert len(log.lines) == 1
            # Again from the journal, and again: nobody has said that it may run once more.
            state = fold(State(), journal.entries)
            for _ in range(2):
                asked = await going_on(stage, agent, state)
                assert asked.stop_reason == "needs_human"
                assert [each.decision for each in asked.waiting_for] == ["uncertain"]
                state = asked.state
            assert len(log.lines) == 1
            result = await going_on(stage, agent, state, reply)
            assert result.stop_reason == "completed"
            assert len(log.lines) == 2 and len(set(log.lines)) == 1

    asyncio.run(go())


def test_an_approval_that_came_twice_does_not_let_the_call_run_twice() -> None:
    async def go() -> None:
        log, inbox = Log(), MemoryInbox()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[paying(log, requires_approval=True)])
            waiting = await stage.run(agent)
            (call,) = waiting.waiting_for
            for _ in range(2):
                inbox.reply(Reply(call_id=call.id, verdict="approve", args_hash=call.args_hash))
            journal = DyingJournal("pay", stage.journal.entries)
            with pytest.raises(Dies):
                await stage.run(agent, "", state=waiting.state, journal=journal, inbox=inbox)
            state = fold(State(), journal.entries)
            asked = await stage.run(agent, "", state=state, inbox=inbox)
            (ask,) = asked.asks
            assert (ask.kind, asked.stop_reason) == ("unsafe", "needs_human")
            assert len(log.lines) == 1
            inbox.reply(Reply(call_id=call.id, verdict="answer", text="It was paid."))
            ended = await stage.run(agent, "", state=asked.state, inbox=inbox)
            assert ended.stop_reason == "completed"
            assert len(log.lines) == 1

    asyncio.run(go())


def test_a_default_that_approves_does_not_let_a_call_run_that_may_have_run() -> None:
    async def go() -> None:
        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(
                tools=[paying(log)],
                approval_timeout=datetime.timedelta(days=1),
                approval_default="approve",
            )
            asked = await going_on(stage, agent, await dying(stage, agent))
            (each,) = asked.state.asking.values()
            due_ms = each.due_ms
            result = await going_on(stage, agent, asked.state, clock=lambda: due_ms)
            assert result.stop_reason == "completed"
            assert len(log.lines) == 1
            (content,) = stage.fake.requests[1].tool_results.values()
            assert "Nobody has answered" in content and "must not run twice" in content

    asyncio.run(go())


def test_a_call_that_had_begun_is_not_said_to_be_unrun_when_the_run_stops_over_it() -> None:
    async def go() -> None:
        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            tools = [paying(log)]
            state = await dying(stage, stage.agent(tools=tools))
            changed = stage.agent(tools=tools, instructions="Be quick.")
            stopped = await going_on(stage, changed, state)
            assert "the agent's prompt changed" in stopped.detail
            result = await stage.run(changed, "Go on.", state=stopped.state)
            assert result.stop_reason == "completed"
            assert len(log.lines) == 1
            (content,) = stage.fake.requests[1].tool_results.values()
            assert "may or may not have taken effect" in content

    asyncio.run(go())


def test_a_call_begins_only_after_that_is_stored() -> None:
    async def go() -> None:
        log = Log()

        class NoStart(MemoryJournal):
            async def append(self, entries: Sequence[Entry]) -> None:
                if any(isinstance(each, Started) for each in entries):
                    raise Dies
                await super().append(entries)

        async with Stage([turn(PAY)]) as stage:
            agent = stage.agent(tools=[paying(log)])
            with pytest.raises(Dies):
                await stage.run(agent, journal=NoStart())
            assert log.lines == []

    asyncio.run(go())


def test_a_hook_has_its_say_before_a_person_and_what_it_changed_is_what_runs() -> None:
    async def go() -> None:
        log, hooked = Log(), Log()

        @tool(requires_approval=True)
        async def pay(cents: int) -> str:
            """Pay."""
            log(cents)
            return "paid"

        def halve(call: Any) -> Any:
            hooked(call.id)
            return {"cents": call.input["cents"] // 2}

        async with Stage([turn(tool_use("pay", {"cents": 10})), turn(text("ok"))]) as stage:
            agent = stage.agent(tools=[pay], hooks=Hooks(before_tool_call=halve))
            waiting = await stage.run(agent)
            (call,) = waiting.waiting_for
            assert call.input == {"cents": 5}
            reply = Reply(call_id=call.id, verdict="approve", args_hash=call.args_hash)
            await going_on(stage, agent, waiting.state, reply)
            assert log.lines == [5]
            assert len(hooked.lines) == 1

    asyncio.run(go())


def test_what_hooks_decide_about_a_turn_is_stored_in_one_piece_with_its_end() -> None:
    async def go() -> None:
        batches: list[list[str]] = []

        class Batches(MemoryJournal):
            async def append(self, entries: Sequence[Entry]) -> None:
                batches.append(kinds(entries))
                await super().append(entries)

        log = Log()
        async with Stage([turn(PAY), turn(text("ok"))]) as stage:
            agent = stage.agent(
                tools=[paying(log)],
                hooks=Hooks(prepare_next_turn=lambda _: NextTurn(thinking="off")),
            )
            await stage.run(agent, journal=Batches())
        ended = next(each for each in batches if TurnEnded.__name__ in each)
        assert ended[-2:] == [TurnEnded.__name__, Switched.__name__]

    asyncio.run(go())
