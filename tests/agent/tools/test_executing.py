"""A batch of calls: order, isolation, the journal around each.
Method: tools that meet each other at events, and an environment that records."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from typing import Any

import pytest
from tests.agent.tools.stage import Recorder, call, execute, run_one

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.tools.context import ToolContext
from treadle.worker.agent.tools.declaring import check_tools, tool, tool_from_schema
from treadle.worker.agent.tools.env import ToolBegan, ToolEnded, ToolProgress
from treadle.worker.agent.tools.errors import ToolRejected
from treadle.worker.agent.tools.executing import execute_batch


def test_results_are_in_the_order_of_the_calls_and_ends_in_that_of_completion() -> None:
    gates = {name: asyncio.Event() for name in ("a", "b", "c")}

    @tool(idempotent=True)
    async def wait(name: str, opens: str = "") -> str:
        await gates[name].wait()
        if opens:
            gates[opens].set()
        return name

    gates["c"].set()
    recorder = Recorder()
    calls = [
        call("wait", "1", name="a"),
        call("wait", "2", name="b", opens="a"),
        call("wait", "3", name="c", opens="b"),
    ]
    results = execute(calls, [wait], recorder)
    assert [r.id for r in results] == ["1", "2", "3"]
    assert [r.content for r in results] == ["a", "b", "c"]
    ended = [e.result.id for e in recorder.events if isinstance(e, ToolEnded)]
    assert ended == ["3", "2", "1"] == [r.id for r in recorder.settled]


@pytest.mark.parametrize("by", ["tool", "agent"])
def test_one_sequential_tool_makes_the_whole_batch_run_one_after_the_other(by: str) -> None:
    running: list[str] = []
    most = 0

    async def work(name: str) -> str:
        nonlocal most
        running.append(name)
        most = max(most, len(running))
        await asyncio.sleep(0.001)
        running.remove(name)
        return name

    read = tool(name="read", idempotent=True)(work)
    write = tool(name="write", idempotent=by == "agent")(work)
    recorder = Recorder()
    calls = [call("read", "1", name="1"), call("write", "2", name="2"), call("read", "3", name="3")]
    execute(calls, [read, write], recorder, sequential=by == "agent")
    assert most == 1 and [r.id for r in recorder.settled] == ["1", "2", "3"]


def test_calls_side_by_side_are_bounded() -> None:
    running = most = 0

    @tool(idempotent=True)
    async def work(n: int) -> int:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.001)
        running -= 1
        return n

    results = execute([call("work", str(n), n=n) for n in range(20)], [work], parallel_max=4)
    assert most == 4 and [r.content for r in results] == [str(n) for n in range(20)]


def test_one_failure_never_touches_its_siblings() -> None:
    @tool(sequential=False)
    async def work(n: int) -> int:
        await asyncio.sleep(0)
        if n == 1:
            raise ValueError("broken")
        await asyncio.sleep(0.01)
        return n

    results = execute([call("work", str(n), n=n) for n in range(20)], [work])
    assert [r.status for r in results] == ["ok", "error"] + ["ok"] * 18
    assert results[1].content == "ValueError: broken" and results[1].error_type == "ValueError"
    assert "Traceback" not in str(results[1].content)
    assert (results[0].effect, results[1].effect) == ("committed", "unknown")


def test_a_failure_in_a_sequential_batch_leaves_the_rest_to_run() -> None:
    @tool
    def work(n: int) -> int:
        return 1 // n

    results = execute([call("work", "1", n=0), call("work", "2", n=1)], [work])
    assert [r.status for r in results] == ["error", "ok"]


def test_the_journal_knows_of_an_unsafe_call_before_it_runs_and_of_each_end() -> None:
    recorder = Recorder()
    seen: list[list[tuple[str, str]]] = []

    @tool
    def write() -> None:
        seen.append(list(recorder.journal))

    @tool(idempotent=True)
    def read() -> None: ...

    execute([call("write", "w"), call("read", "r")], [write, read], recorder)
    assert seen == [[("started", "w")]]
    assert recorder.journal == [("started", "w"), ("settled", "w"), ("settled", "r")]
    assert recorder.keys == {"w": "r1:s1:w"}


def test_the_journal_is_never_told_two_things_at_once() -> None:
    inside = False

    async def exclusive(*_: object) -> None:
        nonlocal inside
        assert not inside
        inside = True
        await asyncio.sleep(0.001)
        inside = False

    @tool(sequential=False)
    async def work(n: int) -> int:
        return n

    calls = [call("work", str(n), n=n) for n in range(30)]
    results = execute(calls, [work], started=exclusive, settled=exclusive)
    assert len(results) == 30


@pytest.mark.parametrize("where", ["started", "settled"])
def test_a_journal_that_refuses_ends_the_batch_with_no_call_alive(where: str) -> None:
    ran: list[int] = []
    ended: list[int] = []

    @tool(sequential=False)
    async def work(n: int) -> None:
        ran.append(n)
        try:
            if n:
                await asyncio.sleep(60)
        finally:
            ended.append(n)

    async def refuse(*args: Any) -> None:
        if getattr(args[0], "id", "") == "0":
            raise OSError("the journal is gone")

    async def main() -> None:
        env = Recorder().env(**{where: refuse})
        calls = [call("work", str(n), n=n) for n in range(3)]
        with pytest.raises(OSError, match="the journal is gone"):
            await execute_batch(calls, check_tools([work]), env)
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(main())
    assert sorted(ran) == sorted(ended)
    assert (0 in ran) == (where == "settled")


def test_after_the_journal_refused_no_later_call_begins() -> None:
    ran: list[int] = []

    @tool
    def work(n: int) -> None:
        ran.append(n)

    async def refuse(_: ToolResult) -> None:
        raise OSError("gone")

    with pytest.raises(OSError, match="gone"):
        execute([call("work", str(n), n=n) for n in range(3)], [work], settled=refuse)
    assert ran == [0]


def test_one_hundred_parallel_results_are_all_settled_once() -> None:
    @tool(idempotent=True)
    def work(n: int) -> int:
        return n

    recorder = Recorder()
    execute([call("work", str(n), n=n) for n in range(100)], [work], recorder)
    assert sorted(int(r.id) for r in recorder.settled) == list(range(100))


def test_two_different_calls_with_one_id_both_have_their_result() -> None:
    @tool(idempotent=True)
    def echo(text: str) -> str:
        return text

    results = execute([call("echo", "t", text="a"), call("echo", "t", text="b")], [echo])
    assert [r.content for r in results] == ["a", "b"]


def test_what_was_not_decided_to_run_does_not_run() -> None:
    ran: list[str] = []

    @tool
    def act(name: str) -> None:
        ran.append(name)

    denied = ToolCall(
        id="1", name="act", input={"name": "x"}, args_hash="", decision="denied", reason="Not now."
    )
    recorder = Recorder()
    results = execute([denied, call("act", "2", name=1), call("gone", "3")], [act], recorder)
    assert [r.status for r in results] == ["refused"] * 3 and ran == []
    assert results[0].content == "Not now." and results[0].error_type == "denied"
    assert "name" in str(results[1].content) and results[1].error_type == "invalid"
    assert [entry for entry in recorder.journal if entry[0] == "started"] == []


def test_calls_that_are_no_longer_wanted_are_skipped_with_the_reason() -> None:
    ran: list[int] = []

    @tool
    def work(n: int) -> None:
        ran.append(n)

    results = execute(
        [call("work", str(n), n=n) for n in range(3)],
        [work],
        skip=lambda _: "Skipped: there is new guidance." if ran else "",
    )
    assert ran == [0] and [r.status for r in results] == ["ok", "skipped", "skipped"]


def test_a_plain_function_leaves_the_event_loop_free() -> None:
    beats = 0

    @tool
    def block() -> str:
        time.sleep(0.15)
        return threading.current_thread().name

    async def main() -> ToolResult:
        async def beat() -> None:
            nonlocal beats
            while True:
                beats += 1
                await asyncio.sleep(0.01)

        beating = asyncio.create_task(beat())
        results = await execute_batch([call("block")], check_tools([block]), Recorder().env())
        beating.cancel()
        return results[0]

    assert str(asyncio.run(main()).content).startswith("treadle-tool")
    assert beats >= 5


def test_context_variables_are_seen_in_both_kinds_of_tools() -> None:
    user = contextvars.ContextVar("user", default="nobody")

    @tool
    def plain() -> str:
        return user.get()

    @tool
    async def waiting() -> str:
        return user.get()

    async def main() -> list[ToolResult]:
        user.set("ada")
        calls = [call("plain"), call("waiting")]
        return await execute_batch(calls, check_tools([plain, waiting]), Recorder().env())

    assert [r.content for r in asyncio.run(main())] == ["ada", "ada"]


def test_the_context_says_which_call_it_is_and_carries_the_deps() -> None:
    seen: dict[str, Any] = {}

    @tool
    def look(ctx: ToolContext[dict[str, str]], n: int) -> None:
        seen.update(
            deps=ctx.deps, place=(ctx.run, ctx.step, ctx.iteration), call=(ctx.tool, ctx.call_id),
            key=ctx.idempotency_key, attempt=ctx.attempt, n=n, logger=ctx.logger.extra,
        )  # fmt: skip

    execute([call("look", "t1", n=1)], [look], deps={"a": "b"}, iteration=4)
    assert seen["deps"] == {"a": "b"} and seen["place"] == ("r1", "s1", 4)
    assert seen["call"] == ("look", "t1") and seen["key"] == "r1:s1:t1" and seen["attempt"] == 1
    assert seen["logger"]["call_id"] == "t1"


def test_progress_and_heartbeats_of_a_thread_arrive_on_the_loop() -> None:
    recorder = Recorder()
    beats: list[str] = []

    @tool
    def work(ctx: ToolContext[None]) -> str:
        ctx.report("half")
        ctx.report({"done": 1})
        ctx.heartbeat()
        return "x"

    execute(
        [call("work")],
        [work],
        recorder,
        heartbeat=lambda: beats.append(threading.current_thread().name),
    )
    progress = [e.data for e in recorder.events if isinstance(e, ToolProgress)]
    assert progress == ["half", {"done": 1}] and beats == ["MainThread"]
    assert recorder.names(ToolBegan) == ["work"]


def test_a_listener_that_raises_disturbs_no_call(caplog: pytest.LogCaptureFixture) -> None:
    def listener(_: object) -> None:
        raise RuntimeError("listener")

    @tool
    def work() -> str:
        return "x"

    assert execute([call("work")], [work], on_event=listener)[0].content == "x"
    assert "agent.tool.listener-failed" in caplog.text


def test_what_a_tool_rejects_is_told_to_the_model_word_for_word() -> None:
    @tool
    def act() -> None:
        raise ToolRejected("No order O-9. Orders: O-1, O-2.")

    result = run_one(act)
    assert (result.status, result.content) == ("error", "No order O-9. Orders: O-1, O-2.")
    assert (result.effect, result.error_type) == ("none", "rejected")


@pytest.mark.parametrize("kind", [SystemExit, asyncio.CancelledError, StopIteration])
def test_a_tool_that_exits_or_cancels_itself_only_fails(kind: type[BaseException]) -> None:
    @tool
    async def act() -> None:
        raise kind()

    @tool
    def plain() -> None:
        raise kind()

    for result in execute([call("act"), call("plain")], [act, plain]):
        assert result.status == "error" and result.error_type in (kind.__name__, "RuntimeError")


def test_arguments_that_do_not_fit_are_no_failure_of_the_run_and_are_not_retried() -> None:
    @tool(idempotent=True)
    def act(n: int) -> None: ...

    recorder = Recorder()
    result = run_one(act, recorder, n="x")
    assert result.status == "refused" and recorder.waits_s == []


def test_the_arguments_of_a_tool_known_by_its_schema_come_as_one_dictionary() -> None:
    async def remote(ctx: ToolContext[Any], arguments: dict[str, Any]) -> object:
        return {"call": ctx.call_id, **arguments}

    schema = {"type": "object", "properties": {"ctx": {"type": "string"}}}
    made = tool_from_schema("remote", "", schema, remote)
    assert run_one(made, ctx="c", more=1).content == '{"call":"toolu_remote","ctx":"c","more":1}'


def test_a_hook_may_replace_a_result_and_its_failure_shows_nothing_of_it() -> None:
    @tool
    def act() -> str:
        return "secret"

    async def redact(_: ToolCall, result: ToolResult) -> ToolResult:
        return ToolResult(id=result.id, name=result.name, status="ok", content="***")

    async def broken(_: ToolCall, result: ToolResult) -> ToolResult:
        raise KeyError("pattern")

    recorder = Recorder()
    assert execute([call("act")], [act], recorder, after=redact)[0].content == "***"
    assert recorder.settled[0].content == "***"
    failed = execute([call("act")], [act], after=broken)[0]
    assert failed.status == "error" and "secret" not in str(failed.content)
    assert failed.effect == "committed"


def test_an_empty_batch_has_no_results() -> None:
    assert execute([], []) == []
