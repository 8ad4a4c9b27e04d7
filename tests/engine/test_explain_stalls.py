"""Why a run stands still although engines and workers live: each reason, brought about.

A real server, engine and workers: an engine is slow at one place, a worker stands still, a
consumer is paused, a schedule is gone. The client is asked, and then the command.
"""

from __future__ import annotations

import asyncio
import io
import sys
import threading
from contextlib import redirect_stderr, redirect_stdout
from datetime import UTC, datetime, timedelta
from typing import Any, cast

import pytest
from tests.cli.conftest import Done
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop
from tests.engine.test_explain import explained, handling, holding, task
from tests.engine.test_why_it_waits import in_a_thread

from treadle.cli import exits
from treadle.cli.main import main
from treadle.engine import intake
from treadle.engine.documents import Documents
from treadle.engine.lane_log import LaneLog
from treadle.engine.registers import Registers
from treadle.sdk.bus.puller import Puller
from treadle.sdk.client.explain import reasons, steps
from treadle.sdk.messages import Parked, RunRequested, Sleeping, Task
from treadle.worker import TaskContext, Worker


class Slow:
    """Holds a method of the engine before it does anything, from the n-th call on."""

    def __init__(self, patch: pytest.MonkeyPatch, owner: type, name: str, *, at: int = 1) -> None:
        self.reached, self.gate = asyncio.Event(), asyncio.Event()
        self._left = at
        act = getattr(owner, name)

        async def slow(*arguments: Any, **more: Any) -> Any:
            self._left -= 1
            if self._left <= 0:
                self.reached.set()
                await self.gate.wait()
            return await act(*arguments, **more)

        patch.setattr(owner, name, slow)


async def command(stand: Stand, *arguments: str) -> Done:
    """Call the entry point of ``treadle`` on the stand, in a thread."""
    place = ("--url", stand.settings.url, "--namespace", stand.settings.namespace)
    out, err = io.StringIO(), io.StringIO()

    def call() -> int:
        with redirect_stdout(out), redirect_stderr(err):
            try:
                main([*arguments, *place])
            except SystemExit as ended:
                return int(ended.code or 0)
        raise AssertionError("it returned")

    return Done(await asyncio.to_thread(call), out.getvalue(), err.getvalue())


# ---------------------------------------------------------------- a slow engine


@pytest.mark.slow
def test_a_step_whose_task_is_not_stored_is_on_its_way_and_later_a_problem(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stand: Stand) -> None:
        slow = Slow(monkeypatch, Registers, "create")
        await stand.engine()
        stand.worker(handling("think", lambda ctx: "done"))
        monkeypatch.setattr(steps, "YOUNG_MS", 60_000)
        await stand.client.start(task("think"), None, id="run")
        await slow.reached.wait()
        words = "step 'only' has begun, and its task is not stored yet (since 2"
        told, reason = await explained(stand, "moving")
        assert told.state == "healthy" and words in reason.text and not reason.command
        monkeypatch.setattr(steps, "YOUNG_MS", 0)
        told, reason = await explained(stand, "undispatched")
        assert told.state == "stuck" and words in reason.text
        assert reason.command == "treadle doctor" and 0 < reason.since_ms <= told.at_ms
        slow.gate.set()
        await stand.ended()

    play(story)


@pytest.mark.slow
def test_a_document_that_lags_behind_its_register_is_on_its_way_and_later_a_problem(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        waits = handling("link", lambda ctx: ctx.wait("an idea") if ctx.run == "w" else None)
        stand.worker(waits)
        slow = Slow(monkeypatch, Documents, "put", at=2)  # The first one creates it.
        await stand.client.start(loop(), None, id="w")
        await stand.holds(Parked, "w")
        await slow.reached.wait()
        told, reason = await explained(stand, "moving", "w")
        assert told.state == "healthy" and reason.text == "step 'loop' has just begun to wait"
        await stand.client.signal("w", "go")
        monkeypatch.setattr(reasons, "BEHIND_MS", 0)
        told, reason = await explained(stand, "engine_behind", "w")
        assert told.state == "stuck" and reason.command == "treadle doctor"
        words = "an engine runs and is behind: 2 events wait in this run's partition, the oldest si"
        assert words in reason.text and 0 < reason.since_ms <= told.at_ms
        monkeypatch.undo()
        slow.gate.set()
        await explained(stand, "message_wait", "w")

    play(story)


def test_a_run_whose_last_step_has_ended_is_between_two_steps(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", lambda ctx: ctx.complete(None)))
        slow = Slow(monkeypatch, Documents, "put", at=2)
        run = await stand.client.start(loop(), None, id="run")
        await slow.reached.wait()
        told, reason = await explained(stand, "moving")
        assert (told.state, reason.text) == ("healthy", "it is between two steps")
        slow.gate.set()
        await run.result(timeout_s=10)

    play(story)


@pytest.mark.slow
def test_the_first_one_in_a_lane_is_about_to_start(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(holding(gate, "think"))
        await stand.client.start(task("think"), None, id="z", lane="chat")
        await stand.client.start(task("think"), None, id="run", lane="chat")
        await explained(stand, "lane_queued")
        slow = Slow(monkeypatch, LaneLog, "grant")
        gate.set()
        await slow.reached.wait()
        told, reason = await explained(stand, "lane_next")
        assert (told.state, reason.command) == ("healthy", "")
        assert reason.text.startswith("first in lane 'chat', about to start (queued since 2")
        assert 0 < reason.since_ms <= told.at_ms
        slow.gate.set()
        await stand.ended()

    play(story)


@pytest.mark.slow
def test_an_event_of_another_run_that_is_tried_again_and_again_keeps_no_healthy_run(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(intake, "FAILED_LATER_MS", 20)
    monkeypatch.setattr(intake, "POISON_DELIVERIES", 10_000)
    monkeypatch.setattr(reasons, "BEHIND_MS", 0)

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(handling("link", lambda ctx: ctx.wait("an idea")))
        await stand.js.store(stand.subjects.workflow_version("rotten", "0"), b"not a definition")
        await stand.publish(RunRequested(workflow="rotten", definition="0"), "bad-1")
        await stand.client.start(loop(), None, id="run")
        told, reason = await explained(stand, "message_wait")
        assert [each.kind for each in told.reasons] == ["message_wait"]
        # Of two that are not handled the server does not say which: what is stored of the run does.
        await stand.publish(RunRequested(workflow="rotten", definition="0"), "bad-2")
        await stand.client.start(loop(), None, id="more")
        told, reason = await explained(stand, "message_wait", "more")
        assert [each.kind for each in told.reasons] == ["message_wait"]
        slow = Slow(monkeypatch, Documents, "put")
        await stand.client.start(loop(), None, id="late")
        await slow.reached.wait()
        told, reason = await explained(stand, "engine_behind", "late")
        assert told.state == "stuck" and "3 events wait in this run's partition" in reason.text
        assert 0 < reason.since_ms <= told.at_ms
        slow.gate.set()
        await explained(stand, "message_wait", "late")

    play(story)


# ---------------------------------------------------------------- the server gives nothing out


@pytest.mark.slow
def test_a_task_that_the_server_gives_to_no_worker_says_why_and_what_undoes_it(
    play: Play,
) -> None:
    gate = asyncio.Event()

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(holding(gate, "think", concurrency=2))
        await stand.client.start(task("think"), None, id="r1")
        await explained(stand, "executing", "r1")
        s = stand.subjects
        stream, name = s.steps_stream, s.worker_consumer("think")
        config = (await stand.js.api(f"CONSUMER.INFO.{stream}.{name}"))["config"]

        async def change(**changes: Any) -> None:
            body = {"stream_name": stream, "config": {**config, **changes}, "action": "update"}
            await stand.js.api(f"CONSUMER.CREATE.{stream}.{name}", body)

        await change(max_ack_pending=1)
        await stand.client.start(task("think"), None, id="run")
        told, reason = await explained(stand, "untaken")
        assert told.state == "stuck" and "and the server gives it to no worker: " in reason.text
        assert f"1 messages of consumer {name} of stream {stream} are given out" in reason.text
        assert reason.command == f"nats consumer edit {stream} {name} --max-pending NUMBER"
        await change()
        await explained(stand, "executing")

        await stand.js.api(
            f"CONSUMER.PAUSE.{stream}.{name}", {"pause_until": "2100-01-01T00:00:00Z"}
        )
        gate.set()
        await stand.ended("r1")
        await stand.ended()
        gate.clear()
        await stand.client.start(task("think"), None, id="r3")
        told, reason = await explained(stand, "untaken", "r3")
        assert f"consumer {name} of stream {stream} is paused (until 2" in reason.text
        assert reason.until_ms > told.at_ms and "(since 2" in reason.text
        assert reason.command == f"nats consumer resume {stream} {name}"

        shown = await command(stand, "explain", "r3")
        told_json = await command(stand, "explain", "r3", "--json")
        assert (shown.code, told_json.code) == (exits.STUCK, exits.STUCK)
        (found,) = told_json.json["reasons"]
        assert (found["kind"], found["command"]) == ("untaken", reason.command)
        assert found["until_ms"] == reason.until_ms and found["since_ms"] == reason.since_ms
        first, second, *_ = shown.out.splitlines()
        assert first.startswith("run r3 of one-think is stuck: step 'only' is to execute its task")
        assert second == f"    {reason.command}"

        await stand.js.api(f"CONSUMER.PAUSE.{stream}.{name}", {})
        gate.set()
        await stand.ended("r3")

    play(story)


def test_engines_that_the_server_gives_no_events_are_told_apart_from_slow_ones(
    play: Play,
) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        s = stand.subjects
        stream, name = s.events_stream, s.engine_consumer(s.partition("run"))
        paused = {"pause_until": "2100-01-01T00:00:00Z"}
        await stand.js.api(f"CONSUMER.PAUSE.{stream}.{name}", paused)
        await stand.client.start(loop(), None, id="run")
        told, reason = await explained(stand, "engine_behind")
        assert told.state == "stuck" and reason.since_ms
        assert f"is given no events: consumer {name} of stream {stream} is paused" in reason.text
        assert "(until 2" in reason.text and "one event waits in this run's part" in reason.text
        assert reason.command == f"nats consumer resume {stream} {name}"
        await stand.js.api(f"CONSUMER.PAUSE.{stream}.{name}", {})
        await stand.holds(Task)

    play(story)


# ---------------------------------------------------------------- timers


def test_a_delay_whose_schedule_is_gone_is_overdue(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["treadle.engine.core.advance"], "DELAY_BY_WORKER_MS_MAX", 0)
    monkeypatch.setattr(steps, "OVERDUE_MS", 0)
    monkeypatch.setattr(reasons, "OVERDUE_MS", 0)

    async def gone(stand: Stand, run: str) -> None:
        timers, subject = stand.subjects.timers_stream, stand.subjects.timer(run, "w-loop")
        await stand.until(
            "its schedule is gone", lambda: stand.js.purge(timers, subject), lambda n: n == 1
        )

    async def story(stand: Stand) -> None:
        def pause(ctx: Any) -> Any:
            if ctx.iteration:
                return ctx.complete(None)
            until = datetime.now(UTC) + timedelta(seconds=0.4)
            return ctx.wait("the night", until=until) if ctx.run == "w" else ctx.continue_(None)

        await stand.engine()
        stand.worker(handling("link", pause))
        await stand.client.start(loop(loop_delay=0.4), None, id="run")
        await stand.holds(Sleeping)
        await gone(stand, "run")
        told, reason = await explained(stand, "overdue")
        assert told.state == "stuck" and reason.command == "treadle doctor"
        assert "step 'loop' was due at 2" in reason.text and " ago, and has not" in reason.text
        assert 0 < reason.since_ms <= told.at_ms

        await stand.client.start(loop(), None, id="w")
        await stand.holds(Parked, "w")
        await gone(stand, "w")
        told, reason = await explained(stand, "overdue", "w")
        assert told.state == "stuck" and ", which was " in reason.text
        assert reason.command == "treadle run resume w --step loop"
        await stand.client.resume("w", "loop")
        assert (await stand.ended("w")).status == "completed", "the command helps"
        await stand.client.cancel("run")
        await stand.ended()

    play(story)


# ---------------------------------------------------------------- a worker that stands still


@pytest.mark.slow
def test_a_task_that_one_of_two_workers_may_have_names_the_one_that_stands_still(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, release = asyncio.Event(), threading.Event()
    blocked = Worker("alpha")
    # What a blocked worker has asked for is good until it expires: long enough to be given a task.
    monkeypatch.setitem(cast("dict[str, Any]", Puller.__init__.__kwdefaults__), "expires_s", 60.0)

    @blocked.handler("blocks")
    async def blocks(ctx: TaskContext[None]) -> None:
        release.wait(30)

    @blocked.handler("think")
    async def thinks(ctx: TaskContext[None]) -> None: ...

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(holding(gate, "think", concurrency=1))
        await stand.client.start(task("think"), None, id="r0")
        await explained(stand, "executing", "r0")
        async with in_a_thread(stand, blocked):
            try:
                place = f"{stand.subjects.steps_stream}.{stand.subjects.worker_consumer('think')}"
                await stand.until(
                    "alpha has asked for tasks of that type",
                    lambda: stand.js.api(f"CONSUMER.INFO.{place}"),
                    lambda info: info["num_waiting"] > 0,
                )
                await stand.client.start(task("blocks"), None, id="r1")
                told, reason = await explained(stand, "blocked", "r1")
                assert 0 < told.at_ms - reason.since_ms < 30_000, "since when it stands still"
                # The only one with room stands still: the server gives it the task.
                await stand.client.start(task("think"), None, id="run")
                monkeypatch.setattr(steps, "YOUNG_MS", 60_000)
                # Before the server has given it out, it is starting too.
                words = "step 'only' is to execute its task and was given to a worker (since 2"
                told, reason = await explained(stand, "starting", says=words)
                assert told.state == "healthy" and reason.text.startswith(words)
                assert not reason.command and 0 < reason.since_ms <= told.at_ms
                monkeypatch.setattr(steps, "YOUNG_MS", 0)
                told, reason = await explained(stand, "blocked")
                assert told.state == "stuck" and reason.command == "treadle doctor"
                assert "and no free one has it" in reason.text
                (note,) = [each for each in told.reasons if each.kind == "maybe_blocked"]
                words = "step 'only' may wait for a blocked worker: the event loop of worker 'alph"
                assert note.text.startswith(words) and " s at " in note.text
                assert "test_explain_stalls.py:" in note.text and note.level == "note"
                assert "(run 'r1')" in note.text and 0 < told.at_ms - note.since_ms < 30_000
            finally:
                release.set()
                gate.set()
            await stand.ended()

    play(story)
