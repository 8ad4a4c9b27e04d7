"""The hard limit in time: a run ends at it, whatever it is doing, with a transcript that can go on.

``Stage.run`` checks after each run that its conversation can go on.
"""

from __future__ import annotations

import asyncio
import datetime
import time
from typing import Any

import pytest
from tests.agent.run.stage import Log, Stage, until

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Settled
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.ports import MemoryInbox, MemoryJournal, Reply
from treadle.worker.agent.testing import stall_after, text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool

SHORT = Budget(max_duration=datetime.timedelta(seconds=2))


async def warmed(stage: Stage) -> AnthropicModel:
    """Return a model that has its connection, so that the limit is not used up by making it."""
    model = stage.model()
    stage.fake.extend(turn(text("warm")))
    await stage.run(stage.agent(model=model), journal=MemoryJournal())
    return model


def test_a_model_call_that_hangs_is_cut_at_the_hard_limit() -> None:
    async def go() -> None:
        stalled = turn(text("a long answer"), fault=stall_after("content_block_delta"))
        async with Stage() as stage:
            agent = stage.agent(model=await warmed(stage), budget=SHORT)
            stage.fake.extend(stalled)
            began = time.monotonic()
            result = await asyncio.wait_for(stage.run(agent), 10)
            assert result.stop_reason == "timeout"
            assert time.monotonic() - began >= 1.9
            closed = await asyncio.to_thread(stage.fake.wait_client_closed, 2)
            assert closed.client_closed_at is not None
            assert "max_duration is 0:00:02" in result.detail
            assert "Raise max_duration" in result.detail
            (stopped,) = stage.named("agent_run.stopped")
            assert stopped.fields["reason"] == "timeout"

    asyncio.run(go())


@pytest.mark.slow
def test_a_tool_that_hangs_is_cut_at_the_hard_limit_and_what_was_done_is_kept() -> None:
    log = Log()

    @tool(idempotent=True)
    async def hang(n: int) -> str:
        """Hang, unless it is the call 0."""
        if n == 0:
            return "quick"
        try:
            await asyncio.Event().wait()
        finally:
            log("ended")
        raise AssertionError

    async def go() -> None:
        calls = [tool_use("hang", {"n": n}, id=f"hang{n}") for n in (0, 1)]
        async with Stage() as stage:
            agent = stage.agent(model=await warmed(stage), tools=[hang], budget=SHORT)
            stage.fake.extend(turn(*calls))
            result = await asyncio.wait_for(stage.run(agent), 8)
            assert result.stop_reason == "timeout"
            assert log.lines == ["ended"], "nothing of the batch is alive"
            settled = {e.result.id: e.result for e in stage.entries if isinstance(e, Settled)}
            assert settled["hang0"].content == "quick"
            assert settled["hang1"].status == "cancelled"
            (_, goal_and_results) = result.state.messages[0], result.state.messages[-1]
            assert len(goal_and_results["content"]) == 2

    asyncio.run(go())


@pytest.mark.slow
def test_a_write_to_the_journal_is_never_cut_in_the_middle_by_the_limit() -> None:
    class Slow(MemoryJournal):
        """Is at an answer's record when the limit comes."""

        def __init__(self) -> None:
            super().__init__()
            self.reached = asyncio.Event()
            self.may_end = asyncio.Event()

        async def append(self, entries: Any) -> None:
            if any(type(entry).__name__ == "Answered" for entry in entries):
                self.reached.set()
                await self.may_end.wait()
            await super().append(entries)

    async def go() -> None:
        async with Stage() as stage:
            slow = Slow()
            agent = stage.agent(model=await warmed(stage), budget=SHORT)
            stage.fake.extend(turn(text("done")))
            running = asyncio.create_task(stage.run(agent, journal=slow))
            await slow.reached.wait()
            await until(running.cancelling)  # The limit is over.
            slow.may_end.set()
            result = await asyncio.wait_for(running, 5)
            assert result.stop_reason == "timeout"
            names = [type(entry).__name__ for entry in slow.entries]
            assert names == ["Opened", "Answered", "Stopped"], "each entry once, in order"

    asyncio.run(go())


def test_time_in_which_people_are_waited_for_does_not_count() -> None:
    now = [1_000_000]

    @tool(requires_approval=True)
    async def pay() -> str:
        """Pay."""
        return "paid"

    async def go() -> None:
        async with Stage([turn(tool_use("pay", {}, id="pay")), turn(text("done"))]) as stage:
            agent = stage.agent(
                tools=[pay], budget=Budget(max_duration=datetime.timedelta(seconds=60))
            )
            first = await stage.run(agent, clock=lambda: now[0])
            assert first.stop_reason == "needs_human"
            now[0] += 30 * 24 * 3_600_000
            inbox = MemoryInbox()
            (call,) = first.waiting_for
            inbox.reply(Reply(call_id="pay", verdict="approve", args_hash=call.args_hash))
            second = await stage.run(
                agent, "", state=first.state, inbox=inbox, clock=lambda: now[0]
            )
            assert (second.stop_reason, second.output) == ("completed", "done")
            now[0] += 30 * 24 * 3_600_000
            stage.fake.extend(turn(text("again")))
            third = await stage.run(agent, "And?", state=second.state, clock=lambda: now[0])
            assert (third.stop_reason, third.output) == ("completed", "again")

    asyncio.run(go())


def test_a_run_that_is_taken_up_after_its_limit_is_ended_before_anything_is_called() -> None:
    now = [1_000_000]

    @tool(idempotent=True)
    async def look() -> str:
        """Look, for longer than the whole run may take."""
        now[0] += 61_000
        return "seen"

    async def go() -> None:
        async with Stage([turn(tool_use("look", {}))]) as stage:
            budget = Budget(max_duration=datetime.timedelta(seconds=60))
            agent = stage.agent(tools=[look], budget=budget)
            result = await stage.run(agent, clock=lambda: now[0])
            assert result.stop_reason == "timeout"
            assert stage.fake.count == 1

    asyncio.run(go())
