"""Every reason why a run stands, brought about and explained; a healthy run says what it does.
Method: engine and workers on a real server; the client is asked until it says the reason."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop, open_stand

from treadle.sdk import Retry, UnknownRun, Workflow
from treadle.sdk.bus.puller import Delivery, Puller
from treadle.sdk.client import Explanation, Reason
from treadle.sdk.client.explain import steps
from treadle.sdk.errors import Retryable
from treadle.sdk.messages import Parked, Task
from treadle.sdk.run import PROVIDER_BUSY
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.sdk.spending import Spent
from treadle.worker import Ask, LoopContext, TaskContext, Worker
from treadle.worker.intake import ACK_WAIT_S, consumer_config

PAY = Ask(id="pay-1", kind="approval", tool="pay", input=msgspec.Raw(b"{}"), args_hash="5" * 64)


async def explained(
    stand: Stand, kind: str, run: str = "run", *, says: str = ""
) -> tuple[Explanation, Reason]:
    """Ask until the main reason is of this kind and says this; return explanation and reason."""
    told = await stand.until(
        f"{run} is explained by {kind}",
        lambda: stand.client.explain(run),
        lambda told: told.main.kind == kind and says in told.main.text,
    )
    return told, told.main


def handling(type: str, handle: Callable[[Any], Any], **options: Any) -> Worker:
    """Return a worker ``w`` whose handler of one type is this function."""
    worker = Worker("w", **options)

    @worker.handler(type)
    async def handler(ctx: LoopContext[Any]) -> Any:
        found = handle(ctx)
        return await found if asyncio.iscoroutine(found) else found

    return worker


def task(type: str) -> Workflow[Any]:
    workflow = Workflow(f"one-{type}")
    workflow.task("only", type)
    return workflow


def holding(gate: asyncio.Event, type: str, **options: Any) -> Worker:
    """Return a worker whose tasks take until the gate opens."""
    worker = Worker("w", **options)

    @worker.handler(type)
    async def hold(ctx: TaskContext[Any]) -> str:
        await gate.wait()
        return "done"

    return worker


# ---------------------------------------------------------------- healthy, ended


def test_a_healthy_run_says_what_it_does_and_since_when_and_an_ended_one_how(play: Play) -> None:
    gate = asyncio.Event()

    async def work(ctx: LoopContext[Any]) -> Any:
        ctx.report({"at": 1})
        await gate.wait()
        return ctx.complete("done")

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", work))
        flow = loop(max_iterations=5, timeout=60, max_duration=600)
        run = await stand.client.start(flow, None, id="run")
        told, reason = await explained(stand, "executing")
        assert told.state == "healthy" and not told.is_stuck and reason.step == "loop"
        assert reason.text.startswith(
            "step 'loop' executes iteration 0 (1 of at most 5) on worker 'w' (since 2"
        )
        assert "ago it reported progress" in reason.text
        assert "this attempt may run until " in reason.text
        assert "the loop may run until " in reason.text
        assert 0 <= told.at_ms - reason.since_ms < 30_000
        assert str(told).startswith("run run of one-loop is getting on: step 'loop' executes")
        gate.set()
        await run.result(timeout_s=10)
        told = await run.explain()
        assert (told.state, told.main.kind) == ("ended", "completed")
        assert told.main.command == "treadle run result run"
        assert "it completed at 2" in told.main.text and " ago, after " in told.main.text

    play(story)


def test_a_failed_run_says_where_and_names_its_dead_letter(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", lambda ctx: ctx.fail("no luck", retryable=False)))
        await stand.client.start(loop(), None, id="run")
        await stand.ended("run")
        told = await stand.client.explain("run")
        assert (told.state, told.main.kind) == ("ended", "failed")
        assert "step 'loop', iteration 0: " in told.main.text and "no luck" in told.main.text
        assert told.main.command == "treadle run history run"
        (_, letter) = told.reasons
        assert letter.kind == "dead_letter" and "run_failed" in letter.text
        assert letter.command == "treadle dead show 1"

    play(story)


def test_a_cancelled_run_says_why(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        run = await stand.client.start(loop(), None, id="run")
        await run.cancel("no need")
        await stand.ended("run")
        told = await run.explain()
        assert (told.state, told.main.kind) == ("ended", "cancelled")
        assert told.main.text.endswith(": no need")

    play(story)


@pytest.mark.slow
def test_a_run_that_is_not_here_is_found_in_the_namespace_where_it_is(
    own_server: NatsServer, namespace: str
) -> None:
    # Only so many namespaces are looked through: a server of the suite may have more.
    settings = Settings(url=own_server.url, namespace=namespace)

    async def story() -> None:
        async with open_stand(settings) as stand:
            absent = f"not in namespace '{namespace}'. List runs"
            with pytest.raises(UnknownRun, match=absent):
                await stand.client.explain("nowhere")
            run = f"only-{namespace}"
            other = await _stand_elsewhere(settings, run)
            with pytest.raises(UnknownRun, match=f"`treadle explain {run} --namespace {other}`"):
                await stand.client.explain(run)

    asyncio.run(story())


async def _stand_elsewhere(settings: Settings, run: str) -> str:
    from dataclasses import replace

    from tests.client.stage import open_stage

    other = replace(settings, namespace=f"{settings.namespace}x")
    async with open_stage(other) as stage:
        await stage.document(run, status="running")
    return other.namespace


# ---------------------------------------------------------------- workers


def test_a_task_that_nobody_serves_says_since_when(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(task("think"), None, id="run")
        told, reason = await explained(stand, "unserved")
        assert told.state == "stuck" and reason.command == "treadle worker FILE.py"
        assert "no worker serves task type 'think': none is running (since 2" in reason.text
        _, register = await stand.holds(Task, step="only", type="think")
        assert isinstance(register, Task) and 0 < reason.since_ms <= told.at_ms

    play(story)


@pytest.mark.slow
def test_a_task_waits_in_line_while_all_workers_are_busy(play: Play) -> None:
    gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(holding(gate, "think", concurrency=1))
        await stand.client.start(task("think"), None, id="r1")
        await explained(stand, "executing", "r1")
        await stand.client.start(task("think"), None, id="r2")
        await stand.holds(Task, "r2", "only", "think")
        await stand.client.start(task("think"), None, id="r3")
        told, reason = await explained(stand, "slots_busy", "r3")
        assert told.state == "healthy", "it gets its turn"
        busy = "its worker is busy with 1 executions of at most 1, held by run r1 (since 2"
        assert busy in reason.text
        assert (
            "and 1 task of its type is before it (since 2" in reason.text
            and reason.command == "treadle worker FILE.py"
        )
        _, reason = await explained(stand, "slots_busy", "r2")
        assert "no tasks of its type are before it" in reason.text
        gate.set()
        await stand.client.result("r3", timeout_s=10)

    play(story)


@pytest.mark.slow
def test_a_task_waits_for_a_slot_of_the_worker_that_has_it(play: Play) -> None:
    think, write = asyncio.Event(), asyncio.Event()
    worker = Worker("w", concurrency=1)

    @worker.handler("think")
    async def thinks(ctx: TaskContext[Any]) -> None:
        await think.wait()

    @worker.handler("write")
    async def writes(ctx: TaskContext[Any]) -> None:
        await write.wait()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(worker)
        await stand.client.start(task("think"), None, id="r1")
        await explained(stand, "executing", "r1")
        await stand.client.start(task("write"), None, id="r2")
        told, reason = await explained(stand, "slot_wait", "r2")
        assert told.state == "healthy"
        assert "waits for a slot of worker 'w', which holds 2 tasks and executes 1" in reason.text
        assert "at once, held by run r1 (since 2" in reason.text
        waited = await stand.client.explain("r2")
        think.set()
        _, reason = await explained(stand, "executing", "r2")
        assert reason.since_ms > waited.at_ms - 100, "it executes since then, not since it waits"
        write.set()
        await stand.client.result("r2", timeout_s=10)

    play(story)


def test_a_task_whose_worker_has_gone_says_that_it_is_given_out_again(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(steps, "YOUNG_MS", 0)
    gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        s = stand.subjects
        name = s.worker_consumer("think")
        config = consumer_config(s.registers_of_type("think"), ACK_WAIT_S)
        await stand.js.ensure_consumer(s.steps_stream, name, config)
        await stand.client.start(task("think"), None, id="run")
        # A hand takes the task, as a process would that dies before its first beat.
        taken: asyncio.Queue[Delivery] = asyncio.Queue()
        hand = Puller(
            *(stand.js, s.steps_stream, name),
            capacity=1,
            on_delivery=taken.put_nowait,
            on_missing=_never,
        )
        await hand.start()
        await taken.get()
        await hand.stop()
        stand.worker(holding(gate, "think"))
        told, reason = await explained(stand, "holder_gone")
        assert told.state == "healthy" and "none that lives has it" in reason.text
        gate.set()

    play(story)


async def _never() -> None:
    raise AssertionError("the consumer is there")


@pytest.mark.slow
def test_a_blocked_handler_is_named_with_its_line(play: Play) -> None:
    release = threading.Event()
    worker = Worker("alpha")

    @worker.handler("blocks")
    async def blocks(ctx: TaskContext[None]) -> None:
        release.wait(30)

    async def story(stand: Stand) -> None:
        await stand.engine()
        running = threading.Thread(target=lambda: asyncio.run(worker.run(stand.settings)))
        running.start()
        try:
            await stand.client.start(task("blocks"), None, id="run")
            told, reason = await explained(stand, "blocked")
            assert told.state == "stuck" and "step 'only' blocks its worker" in reason.text
            assert " s at " in reason.text and "test_explain.py:" in reason.text
            assert 0 < told.at_ms - reason.since_ms < 30_000
            assert "executing" in {each.kind for each in told.reasons}
        finally:
            release.set()
            worker.stop()
            await asyncio.to_thread(running.join)

    play(story)


# ---------------------------------------------------------------- people, bounds, time


def test_a_run_that_waits_for_an_approval_says_since_when_and_how_to_answer(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", lambda ctx: ctx.wait("people", asks=[PAY])))
        await stand.client.start(loop(), None, id="run")
        told, reason = await explained(stand, "ask")
        assert told.state == "stuck" and reason.step == "loop"
        assert "step 'loop' asks may pay({}) run? (since 2" in reason.text
        assert reason.command == (
            f"treadle approvals approve pay-1 --run run --hash {PAY.args_hash[:12]}"
        )

    play(story)


def test_a_run_parked_at_its_budget_says_what_was_used_and_raises_it_far_enough(
    play: Play,
) -> None:
    def spend(ctx: LoopContext[Any]) -> Any:
        ctx.report_spent(Spent(cost_micro_usd=7_500_000))
        return ctx.continue_(None)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", spend))
        await stand.client.start(loop(max_cost_usd=1, on_limit="park"), None, id="run")
        told, reason = await explained(stand, "parked")
        assert told.state == "stuck"
        assert "parked at max_cost after 1 iterations, 7.5 of 1 USD used (since 2" in reason.text
        assert reason.command == "treadle run resume run --add-cost 12"
        token, _ = await stand.holds(Parked)
        await stand.client.resume("run", add_cost_usd=12)
        await stand.holds(Parked, since=token)

    play(story)


@pytest.mark.parametrize("kind", ["retry_delay", "loop_delay", "timed_wait", "provider_busy"])
def test_a_pause_that_ends_by_itself_says_when_and_why(play: Play, kind: str) -> None:
    def pause(ctx: LoopContext[Any]) -> Any:
        until = datetime.now(UTC) + timedelta(seconds=50)
        match kind:
            case "retry_delay":
                raise Retryable("overloaded", after_s=50)
            case "loop_delay":
                return ctx.continue_(None)
            case "timed_wait":
                return ctx.wait("the night", until=until)
            case _:
                return ctx.wait(f"{PROVIDER_BUSY}: 429", until=until)

    words = {
        "retry_delay": "waits before it tries iteration 0 (1 of at most 100), attempt 2 (until 2",
        "loop_delay": "pauses before iteration 1 (2 of at most 100) (until 2",
        "timed_wait": "waits for a message: the night (it goes on by itself at 2",
        "provider_busy": "waits: the model's provider is busy: 429 (it goes on by itself at 2",
    }

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", pause))
        await stand.client.start(loop(loop_delay=50, retry=Retry(max_attempts=3)), None, id="run")
        told, reason = await explained(stand, kind)
        assert told.state == "healthy" and words[kind] in reason.text
        assert 30_000 < reason.until_ms - told.at_ms <= 60_000
        if kind == "retry_delay":
            assert "the last one failed: Retryable: overloaded" in reason.text
            assert "asked to wait 50.0s at least" in reason.text

    play(story)


def test_a_step_that_waits_for_a_signal_or_a_message_says_how_to_send_it(play: Play) -> None:
    flow = Workflow("signalled")
    flow.wait_for_signal("go", signal="go")

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", lambda ctx: ctx.wait("an idea")))
        await stand.client.start(flow, None, id="r1")
        told, reason = await explained(stand, "signal_wait", "r1")
        assert told.state == "stuck" and reason.command == "treadle run signal r1 go"
        assert "waits for the signal 'go' (since 2" in reason.text
        await stand.client.start(loop(), None, id="r2")
        told, reason = await explained(stand, "message_wait", "r2")
        assert told.state == "stuck" and reason.command == "treadle run steer r2 loop TEXT"

    play(story)


@pytest.mark.slow
def test_a_queued_run_says_who_holds_its_lane_and_what_that_one_is_doing(play: Play) -> None:
    gate = asyncio.Event()

    async def hold(ctx: LoopContext[Any]) -> Any:
        await gate.wait()
        return ctx.wait("a word") if ctx.run == "z" else ctx.complete(None)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", hold))
        await stand.client.start(loop(), None, id="z", lane="chat")
        await stand.client.start(loop(), None, id="run", lane="chat")
        await stand.until(
            "z executes",
            lambda: stand.client.explain("run"),
            lambda it: "run z of one-loop is getting on: step 'loop' executes" in it.main.text,
        )
        told, reason = await explained(stand, "lane_queued")
        assert told.state == "healthy"
        assert "queued in lane 'chat' behind 1 run, held by z (since 2" in reason.text
        assert reason.command == "treadle run show z"
        gate.set()
        await stand.status("z", "parked")
        told, reason = await explained(stand, "lane_queued")
        assert told.state == "stuck", "nobody sends z its word"
        assert "run z of one-loop is stuck: step 'loop' waits for a message" in reason.text
        assert reason.command == "treadle run steer z loop TEXT"

    play(story)


# ---------------------------------------------------------------- engine, server


def test_without_an_engine_it_says_since_when_and_how_much_waits(play: Play) -> None:
    async def story(stand: Stand) -> None:
        await stand.client.start(loop(), None, id="r1")
        told, reason = await explained(stand, "engine_down", "r1")
        assert told.state == "stuck" and reason.command == "treadle engine"
        waits = "no engine is running, so nothing moves; one event waits, since 2"
        assert reason.text.startswith(waits) and 0 < reason.since_ms <= told.at_ms
        assert [each.kind for each in told.reasons] == ["engine_down", "requested"]
        engine = await stand.engine()
        await stand.holds(Task, "r1")
        await stand.stop(engine)
        _, reason = await explained(stand, "engine_down", "r1")
        assert "; one handled its last event at 2" in reason.text and reason.since_ms

    play(story)


def test_a_full_stream_and_a_server_that_takes_no_writes_are_told(play: Play) -> None:
    async def limit(stand: Stand, stream: str, **changes: Any) -> None:
        config = (await stand.js.api(f"STREAM.INFO.{stream}"))["config"]
        await stand.js.api(f"STREAM.UPDATE.{stream}", {**config, **changes})

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.client.start(loop(), None, id="run")
        await stand.holds(Task)
        events = stand.subjects.events_stream
        await limit(stand, events, max_msgs=1)
        told, reason = await explained(stand, "storage")
        assert told.state == "stuck"
        assert f"stream {events} is full, 1 of at most 1 messages; the last" in reason.text
        assert "message before it was stored at 2" in reason.text and reason.since_ms
        await limit(stand, events, max_msgs=-1)
        await limit(stand, stand.subjects.workflows_stream, sealed=True)
        told, reason = await explained(stand, "storage")
        assert "the server takes no more writes" in reason.text and "sealed" in reason.text
        assert "stored at 2" in reason.text and 0 < reason.since_ms <= told.at_ms

    play(story)
