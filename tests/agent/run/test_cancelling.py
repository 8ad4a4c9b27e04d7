"""Cancelling a run, in whatever it is doing: at once, with nothing alive and a valid transcript.

``Stage.run`` checks after each run that its conversation can go on.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tests.agent.run.stage import Log, Stage, said, until

from treadle.worker.agent.testing import stall_after, text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.cancellation import CancelToken


def test_a_streaming_model_call_is_cut_within_300_ms_as_the_other_side_sees_it() -> None:
    async def go() -> None:
        stalled = turn(text("a long answer"), fault=stall_after("content_block_delta"))
        async with Stage([stalled]) as stage:
            token = CancelToken()
            running = asyncio.create_task(stage.run(stage.agent(), cancelled=token))
            await until(lambda: stage.named("agent.message.delta"))
            at = time.monotonic()
            token.trip("cancelled")
            result = await running
            closed = await asyncio.to_thread(stage.fake.wait_client_closed, 1)
            assert closed.client_closed_at is not None
            assert closed.client_closed_at - at < 0.3
            assert result.stop_reason == "cancelled"
            assert stage.named("agent_run.cancelled")
            stage.fake.extend(turn(text("again")))
            again = await stage.run(stage.agent(), "Once more.", state=result.state)
            assert again.output == "again"

    asyncio.run(go())


def test_a_run_that_was_cancelled_before_it_began_calls_nobody() -> None:
    async def go() -> None:
        async with Stage([]) as stage:
            token = CancelToken()
            token.trip("cancelled")
            result = await stage.run(stage.agent(), cancelled=token)
            assert result.stop_reason == "cancelled"
            assert stage.fake.requests == []

    asyncio.run(go())


def blocking(log: Log) -> Any:
    @tool(idempotent=True)
    async def block(n: int) -> str:
        """Block, unless it is the call 0."""
        log(("began", n))
        if n == 0:
            return "quick"
        try:
            await asyncio.Event().wait()
        finally:
            log(("ended", n))
        raise AssertionError

    return block


def test_every_open_call_of_a_cancelled_batch_gets_a_result_and_finished_ones_keep_theirs() -> None:
    async def go() -> None:
        log = Log()
        calls = [tool_use("block", {"n": n}) for n in range(3)]
        async with Stage([turn(*calls)]) as stage:
            agent, token = stage.agent(tools=[blocking(log)]), CancelToken()
            running = asyncio.create_task(stage.run(agent, cancelled=token))
            await until(lambda: len(log.lines) == 3 and stage.named("agent.tool.ended"))
            token.trip("cancelled")
            result = await running
            assert result.stop_reason == "cancelled"
            assert {("ended", 1), ("ended", 2)} <= set(log.lines)
            stage.fake.extend(turn(text("ok")))
            await stage.run(agent, "Go on.", state=result.state)
            content = stage.fake.requests[1].messages[-1]["content"]
            assert [each["type"] for each in content] == ["tool_result"] * 3 + ["text"]
            assert content[0]["content"] == "quick"
            assert all("cancelled" in each["content"] for each in content[1:3])
            assert all(each["is_error"] for each in content[1:3])

    asyncio.run(go())


def test_cancelled_during_the_first_call_of_a_sequential_batch_the_others_never_begin() -> None:
    async def go() -> None:
        log = Log()
        calls = [tool_use("block", {"n": n}) for n in (1, 2)]
        async with Stage([turn(*calls)]) as stage:
            agent, token = stage.agent(tools=[blocking(log)], sequential=True), CancelToken()
            running = asyncio.create_task(stage.run(agent, cancelled=token))
            await until(lambda: log.count(("began", 1)))
            token.trip("cancelled")
            result = await running
            assert log.count(("began", 2)) == 0
            # What never began is no executed call.
            assert result.used.tool_calls == 1
            stage.fake.extend(turn(text("ok")))
            again = await stage.run(agent, "A new prompt.", state=result.state)
            assert again.stop_reason == "completed"
            assert "A new prompt." in said(stage.fake.requests[1].messages[-1])

    asyncio.run(go())


def test_when_the_task_itself_is_cancelled_nothing_of_the_batch_is_alive_afterwards() -> None:
    async def go() -> None:
        log = Log()
        calls = [tool_use("block", {"n": n}) for n in (1, 2)]
        async with Stage([turn(*calls)]) as stage:
            running = asyncio.create_task(stage.run(stage.agent(tools=[blocking(log)])))
            await until(lambda: len(log.lines) == 2)
            running.cancel()
            (raised,) = await asyncio.gather(running, return_exceptions=True)
            assert isinstance(raised, asyncio.CancelledError)
            assert {("ended", 1), ("ended", 2)} <= set(log.lines)
            alive = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
            assert alive == []

    asyncio.run(go())


def test_a_failure_of_the_journal_stops_the_siblings_and_is_raised() -> None:
    async def go() -> None:
        log = Log()

        class Broken:
            async def append(self, entries: Any) -> None:
                if any(type(entry).__name__ == "Settled" for entry in entries):
                    raise OSError("the disk is full")

        calls = [tool_use("block", {"n": n}) for n in (0, 1)]
        async with Stage([turn(*calls)]) as stage:
            agent = stage.agent(tools=[blocking(log)])
            (raised,) = await asyncio.gather(
                stage.run(agent, journal=Broken()), return_exceptions=True
            )
            assert isinstance(raised, OSError)
            assert log.count(("began", 1)) == log.count(("ended", 1))

    asyncio.run(go())


def test_cancelled_while_it_waits_to_call_the_model_again_the_run_ends_at_once() -> None:
    from treadle.worker.agent.models.retrying import RetryPolicy
    from treadle.worker.agent.testing import error

    async def go() -> None:
        async with Stage([error(529)]) as stage:
            token = CancelToken()
            agent = stage.agent(model_retry=RetryPolicy(first_delay_s=60))
            running = asyncio.create_task(stage.run(agent, cancelled=token))
            await until(lambda: stage.named("agent.model.retry"))
            token.trip("cancelled")
            async with asyncio.timeout(2):
                assert (await running).stop_reason == "cancelled"

    asyncio.run(go())
