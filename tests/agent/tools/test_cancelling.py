"""Timeouts and cancellation: every open call ends, and says what is known of its effect.
Method: tools that wait for ever, or do not obey; tokens tripped and tasks cancelled."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest
from tests.agent.tools.stage import Recorder, call, execute, run_one, until

from treadle.worker.agent.core.calls import ToolResult
from treadle.worker.agent.tools import attempts
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import check_tools, tool
from treadle.worker.agent.tools.executing import execute_batch
from treadle.worker.cancellation import CancelToken


@pytest.mark.parametrize("by", ["token", "task"])
def test_a_cancelled_batch_closes_every_call_and_leaves_no_task(by: str) -> None:
    recorder = Recorder()
    begun: list[int] = []
    closed: list[int] = []

    @tool(sequential=False)
    async def hang(n: int) -> None:
        begun.append(n)
        try:
            await asyncio.sleep(60)
        finally:
            closed.append(n)

    @tool(idempotent=True)
    async def quick() -> str:
        return "done"

    async def main() -> list[ToolResult]:
        token = CancelToken()
        calls = [call("quick", "q"), *[call("hang", str(n), n=n) for n in range(3)]]
        env = recorder.env(cancelled=token, parallel_max=3)
        batch = asyncio.create_task(execute_batch(calls, check_tools([hang, quick]), env))
        await until(lambda: len(begun) == 3)
        began_s = time.monotonic()
        if by == "token":
            token.trip("cancelled")
        else:
            batch.cancel()
        results: list[ToolResult] = []
        try:
            results = await batch
        except asyncio.CancelledError:
            assert by == "task"
        assert time.monotonic() - began_s < 0.3
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    results = asyncio.run(main())
    assert sorted(closed) == [0, 1, 2]
    settled = {r.id: r for r in recorder.settled}
    assert {i: r.status for i, r in settled.items()} == {
        "q": "ok", "0": "cancelled", "1": "cancelled", "2": "cancelled",
    }  # fmt: skip
    assert settled["0"].effect == "unknown" and "not known" in str(settled["0"].content)
    if by == "token":
        assert results == [settled[i] for i in ("q", "0", "1", "2")]


def test_a_call_that_had_not_begun_is_cancelled_without_effect() -> None:
    token = CancelToken()

    @tool
    async def act(n: int) -> None:
        token.trip("cancelled")
        await asyncio.sleep(60)

    recorder = Recorder()
    calls = [call("act", "1", n=1), call("act", "2", n=2)]
    results = execute(calls, [act], recorder, cancelled=token)
    assert [(r.status, r.effect) for r in results] == [
        ("cancelled", "unknown"),
        ("cancelled", "none"),
    ]
    assert recorder.journal == [("started", "1"), ("settled", "1"), ("settled", "2")]


def test_a_result_that_is_there_in_the_moment_of_the_cancel_counts() -> None:
    token = CancelToken()

    @tool
    async def act() -> str:
        token.trip("cancelled")
        return "done"

    assert execute([call("act")], [act], cancelled=token)[0].content == "done"


def test_a_plain_function_hears_of_the_cancel_and_is_not_waited_for() -> None:
    token = CancelToken()
    begun, heard, release = threading.Event(), threading.Event(), threading.Event()

    @tool
    def act(ctx: ToolContext[None]) -> None:
        begun.set()
        ctx.cancelled.wait(10)
        if ctx.cancelled.is_set():
            heard.set()
        release.wait(10)

    async def main() -> list[ToolResult]:
        env = Recorder().env(cancelled=token)
        batch = asyncio.create_task(execute_batch([call("act")], check_tools([act]), env))
        await until(begun.is_set)
        token.trip("cancelled")
        return await batch

    results = asyncio.run(main())
    assert results[0].status == "cancelled" and results[0].effect == "unknown"
    assert heard.wait(5)
    release.set()


def test_a_timeout_of_an_unsafe_tool_is_never_retried_and_its_effect_is_unknown() -> None:
    tries = 0

    @tool(timeout=0.02)
    async def pay() -> None:
        nonlocal tries
        tries += 1
        await asyncio.sleep(60)

    result = run_one(pay)
    assert (result.status, result.effect, tries) == ("timeout", "unknown", 1)
    assert "0.02 s" in str(result.content) and "not known" in str(result.content)


def test_a_thread_at_its_timeout_is_abandoned() -> None:
    release = threading.Event()

    @tool(timeout=0.02)
    def pay() -> None:
        release.wait(10)

    result = run_one(pay)
    assert (result.status, result.effect) == ("timeout", "unknown")
    release.set()


def test_a_timeout_of_an_idempotent_tool_is_tried_again() -> None:
    tries = 0

    @tool(timeout=0.02, idempotent=True)
    async def read() -> str:
        nonlocal tries
        tries += 1
        if tries < 3:
            await asyncio.sleep(60)
        return "there"

    recorder = Recorder()
    result = run_one(read, recorder)
    assert (result.content, result.attempts) == ("there", 3) and recorder.waits_s == [0.5, 2.0]


def test_a_timeout_leaves_the_siblings_alone() -> None:
    @tool(timeout=0.02, sequential=False)
    async def hang() -> None:
        await asyncio.sleep(60)

    @tool(idempotent=True)
    async def slow() -> str:
        await asyncio.sleep(0.06)
        return "done"

    results = execute([call("hang"), call("slow")], [hang, slow])
    assert [r.status for r in results] == ["timeout", "ok"]


def test_a_tool_that_does_not_end_is_left_behind_with_a_word_in_the_log(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(attempts, "CANCEL_GRACE_S", 0.02)

    @tool(timeout=0.02)
    async def stubborn() -> None:
        while True:
            try:
                await asyncio.sleep(0.3)
                return
            except asyncio.CancelledError:
                pass

    assert run_one(stubborn).status == "timeout"
    assert "agent.tool.left-behind tool=stubborn" in caplog.text


def test_a_cancel_ends_the_wait_before_another_attempt() -> None:
    token = CancelToken()

    @tool(idempotent=True)
    async def read() -> None:
        raise ConnectionError("away")

    async def sleep(_: float) -> None:
        token.trip("cancelled")
        await asyncio.sleep(60)

    result = execute([call("read")], [read], cancelled=token, sleep=sleep)[0]
    assert (result.status, result.effect) == ("cancelled", "none")


def test_a_token_that_is_already_set_lets_nothing_begin() -> None:
    ran: list[int] = []

    @tool
    async def act() -> None:
        ran.append(1)
        await asyncio.sleep(60)

    token = CancelToken()
    token.trip("cancelled")
    assert execute([call("act")], [act], cancelled=token)[0].status == "cancelled"
