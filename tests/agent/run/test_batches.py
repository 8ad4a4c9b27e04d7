"""The tools of one answer, run together: in which order, how far apart, and what is kept of each.

Calls wait for one another where their order is the promise; nothing sleeps.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.run.stage import Log, Stage, play

from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.agent.tools.results import Terminate


def adder(log: Log) -> Any:
    @tool(idempotent=True)
    async def add(a: int, b: int) -> int:
        """Add."""
        log((a, b))
        return a + b

    return add


ADD = tool_use("add", {"a": 1, "b": 2})


def test_idempotent_calls_run_side_by_side_and_end_in_their_own_order() -> None:
    gates: dict[str, asyncio.Event] = {}

    @tool(idempotent=True)
    async def wait(name: str, after: str) -> str:
        """Wait for another one."""
        if after:
            await gates.setdefault(after, asyncio.Event()).wait()
        gates.setdefault(name, asyncio.Event()).set()
        return name

    calls = [
        tool_use("wait", {"name": n, "after": a}) for n, a in (("a", "b"), ("b", "c"), ("c", ""))
    ]
    played = play([turn(*calls), turn(text("ok"))], tools=[wait])
    assert list(played.results(1).values()) == ["a", "b", "c"]
    ids = list(played.results(1))
    ended = [each.fields["id"] for each in played.stage.named("agent.tool.ended")]
    assert ended == [ids[2], ids[1], ids[0]]


@pytest.mark.parametrize("why", ["the agent", "a tool"])
def test_calls_run_one_after_the_other_if_the_agent_or_a_tool_of_the_batch_asks_for_it(
    why: str,
) -> None:
    running, most = 0, 0

    async def both() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "ok"

    @tool(idempotent=True)
    async def read(n: int) -> str:
        """Read."""
        return await both()

    @tool(idempotent=why == "the agent")
    async def write(n: int) -> str:
        """Write."""
        return await both()

    calls = [tool_use("read", {"n": 1}), tool_use("write", {"n": 2}), tool_use("read", {"n": 3})]
    play([turn(*calls), turn(text("ok"))], tools=[read, write], sequential=why == "the agent")
    assert most == 1


def test_one_failing_call_leaves_its_siblings_alone_and_their_results_are_kept() -> None:
    @tool(idempotent=True, max_attempts=1)
    async def work(n: int) -> str:
        """Work."""
        if n == 1:
            raise ValueError("one is broken")
        await asyncio.sleep(0)
        return f"worked {n}"

    played = play(
        [turn(*(tool_use("work", {"n": n}) for n in range(3))), turn(text("ok"))], tools=[work]
    )
    first, second, third = played.results(1).values()
    assert (first, third) == ("worked 0", "worked 2")
    assert "one is broken" in second


def test_a_transient_error_of_an_idempotent_tool_is_tried_again_and_told() -> None:
    from treadle.worker.agent.tools.errors import TransientToolError

    tries: dict[str, int] = {"read": 0, "write": 0}

    @tool(idempotent=True)
    async def read() -> str:
        """Read."""
        tries["read"] += 1
        if tries["read"] == 1:
            raise TransientToolError("503")
        return "read"

    @tool
    async def write() -> str:
        """Write."""
        tries["write"] += 1
        raise TransientToolError("503")

    played = play(
        [turn(tool_use("read", {}), tool_use("write", {})), turn(text("ok"))], tools=[read, write]
    )
    assert tries == {"read": 2, "write": 1}
    assert [each.fields["tool"] for each in played.stage.named("agent.tool.retry")] == ["read"]


def test_a_batch_whose_results_all_terminate_ends_the_run() -> None:
    @tool(idempotent=True)
    async def hand_over(to: str) -> Terminate:
        """Hand over."""
        return Terminate(f"handed over to {to}")

    done = tool_use("hand_over", {"to": "ann"})
    played = play([turn(done)], tools=[hand_over])
    assert played.result.output == "handed over to ann"
    mixed = play([turn(done, ADD), turn(text("ok"))], tools=[hand_over, adder(Log())])
    assert mixed.result.output == "ok"


def test_a_large_output_is_cut_to_a_share_of_the_window() -> None:
    @tool(idempotent=True)
    async def dump() -> str:
        """Dump."""
        return "é" * 60_000

    played = play([turn(tool_use("dump", {})), turn(text("ok"))], tools=[dump], window=20_000)
    (result,) = played.results(1).values()
    assert len(result.encode()) <= 20_000 * 0.25 * 3.5
    assert result.startswith("ééé") and result.rstrip().endswith("é")


def test_a_plain_function_runs_beside_the_loop_with_the_context_of_its_caller() -> None:
    import contextvars
    import threading
    import time

    who = contextvars.ContextVar("who", default="nobody")
    ticks = 0
    release = threading.Event()

    @tool(idempotent=True)
    def block() -> str:
        """Block."""
        assert release.wait(5)
        return who.get()

    async def go() -> None:
        nonlocal ticks
        who.set("ann")

        async def tick() -> None:
            nonlocal ticks
            while ticks < 20:
                ticks += 1
                await asyncio.sleep(0.001)
            release.set()

        async with Stage([turn(tool_use("block", {})), turn(text("ok"))]) as stage:
            ticking = asyncio.create_task(tick())
            began = time.monotonic()
            await stage.run(stage.agent(tools=[block]))
            await ticking
            assert time.monotonic() - began < 5
            assert list(stage.fake.requests[1].tool_results.values()) == ["ann"]

    asyncio.run(go())
    assert ticks == 20


def test_what_a_tool_needs_is_given_to_the_run() -> None:
    from treadle.worker.agent.tools.context import ToolContext

    @tool(idempotent=True)
    async def whoami(ctx: ToolContext[str]) -> str:
        """Say who."""
        ctx.report({"at": 1})
        return ctx.deps

    played = play(
        [turn(tool_use("whoami", {})), turn(text("ok"))], tools=[whoami], run={"deps": "ann"}
    )
    assert list(played.results(1).values()) == ["ann"]
    assert played.stage.named("agent.tool.progress")[0].fields["data"] == {"at": 1}


def test_many_parallel_results_are_all_kept_in_their_order() -> None:
    log = Log()

    @tool(idempotent=True)
    async def work(n: int) -> str:
        """Work."""
        for _ in range(n % 3):
            await asyncio.sleep(0)
        log(n)
        return f"worked {n}"

    calls = [tool_use("work", {"n": n}) for n in range(100)]
    played = play([turn(*calls), turn(text("ok"))], tools=[work])
    assert list(played.results(1).values()) == [f"worked {n}" for n in range(100)]
    assert len(log.lines) == 100
