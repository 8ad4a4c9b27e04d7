"""A worker among others: cancels, drains, beats, presence, and a server that forgets or restarts.
Method: a worker on a real server, in this process or, for signals, as a process of its own."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.worker.stage import Stage, open_stage, task, until, until_true

from treadle.sdk.errors import HandlerError
from treadle.sdk.messages import StepCompleted, StepFailed, TaskLost, WorkerPresence
from treadle.sdk.presence import host_id
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.worker import SyncTaskContext, TaskContext, Worker
from treadle.worker.heartbeat import Heartbeat

# ------------------------------------------------------------------ cancel


def test_a_cancel_reaches_running_handlers_at_once_and_nothing_is_settled(
    settings: Settings, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "treadle.worker")

    async def story() -> None:
        worker = Worker(concurrency=2)
        ends: dict[str, float] = {}

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            try:
                await asyncio.sleep(30)
            except asyncio.CancelledError:
                ends[f"{ctx.run}.{ctx.step}"] = time.monotonic()
                assert ctx.cancelled.is_set()
                raise

        @worker.handler("sync")
        def sync(ctx: SyncTaskContext[None]) -> None:
            assert ctx.cancelled.wait(30)
            ends[f"{ctx.run}.{ctx.step}"] = time.monotonic()

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task(), step="a")
            await stage.put(task(), step="b", type_="sync")
            await until_true(lambda: len(stage.beats[-1].held) == 2)
            await stage.put(task(), step="c")  # Waits for a slot.
            await until_true(lambda: len(stage.beats[-1].held) == 3)
            start_s = time.monotonic()
            await stage.cancel(run="other")
            await stage.cancel(step="a")
            await until_true(lambda: "r1.a" in ends)
            assert list(ends) == ["r1.a"]
            await stage.cancel()
            await until_true(lambda: "r1.b" in ends)
            await until_true(lambda: not stage.beats[-1].held)
            assert max(ends.values()) - start_s < 1.0
            assert await stage.events() == []

    asyncio.run(story())
    stopped = [text.split()[0] for text in caplog.messages if "stopped " in text]
    assert stopped.count("worker.stopped") == 1 and "worker.execution-stopped" in stopped


# ------------------------------------------------------------------ drain


def test_a_stop_lets_handlers_finish_and_gives_back_what_waits(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(concurrency=1)
        go_on = asyncio.Event()

        @worker.handler("a")
        async def a(ctx: TaskContext[None]) -> str:
            await go_on.wait()
            return "done"

        @worker.handler("b")
        async def b(ctx: TaskContext[None]) -> None: ...

        async with open_stage(settings) as stage, stage.running(worker) as run:
            await stage.put(task(), type_="a")
            await until_true(lambda: len(stage.beats[-1].held) == 1)
            token = await stage.put(task(), type_="b", run="r2")
            await until_true(lambda: len(stage.beats[-1].held) == 2)
            worker.stop()
            assert (await stage.event(TaskLost, "r2")).token == token
            assert not run.done()
            go_on.set()
            assert bytes((await stage.event(StepCompleted)).output) == b'"done"'
            await run
            await until_true(lambda: stage.beats[-1].leaving)
            assert stage.beats[-1].held == ()
            await stage.until_acked("a")

    asyncio.run(story())


def test_what_does_not_finish_in_time_is_given_back(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker(drain_timeout_s=0.1)
        ends: list[str] = []

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            try:
                await asyncio.sleep(60)
            finally:
                ends.append(str(ctx.cancelled.reason))

        async with open_stage(settings) as stage, stage.running(worker) as run:
            token = await stage.put(task())
            await until_true(lambda: len(stage.beats[-1].held) == 1)
            worker.stop()
            await run
            event = await stage.event(TaskLost)
            assert event.token == token and "stopping" in event.reason
            assert ends == ["lost"]
            await stage.until_acked()

    asyncio.run(story())


def test_a_worker_that_is_cancelled_gives_its_tasks_back(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            await asyncio.sleep(60)

        async with open_stage(settings) as stage:
            run = asyncio.create_task(worker.run(settings))
            await stage.put(task())
            await until_true(lambda: any(beat.held for beat in stage.beats))
            run.cancel()
            with pytest.raises(asyncio.CancelledError):
                await run
            await stage.event(TaskLost)
            await until_true(lambda: stage.beats[-1].leaving)

    asyncio.run(story())


_SCRIPT = """
import asyncio, sys, time
from treadle.sdk.settings import Settings
from treadle.worker import SyncTaskContext, TaskContext, Worker, serve

worker = Worker(drain_timeout_s=float(sys.argv[3]))

@worker.handler("work")
async def work(ctx: TaskContext[float]):
    await asyncio.sleep(ctx.input)
    return "finished"

@worker.handler("stuck")
def stuck(ctx: SyncTaskContext):
    time.sleep(600)

@worker.handler("deaf")
async def deaf(ctx: TaskContext):
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

@worker.handler("exits")
async def exits(ctx: TaskContext):
    async def child():
        raise SystemExit(7)
    await asyncio.create_task(child())

serve(worker, Settings(url=sys.argv[1], namespace=sys.argv[2]))
"""


@asynccontextmanager
async def _process(
    stage: Stage, tmp_path: Path, drain_timeout_s: float
) -> AsyncIterator[subprocess.Popen[bytes]]:
    script = tmp_path / "app.py"
    script.write_text(textwrap.dedent(_SCRIPT))
    arguments = [stage.settings.url, stage.settings.namespace, str(drain_timeout_s)]
    process = subprocess.Popen([sys.executable, str(script), *arguments])
    try:
        await until_true(lambda: stage.beats != [])
        yield process
    finally:
        process.kill()
        process.wait()


async def _exit_status(process: subprocess.Popen[bytes]) -> int:
    await until_true(lambda: process.poll() is not None, timeout_s=15)
    assert process.returncode is not None
    return process.returncode


@pytest.mark.slow
def test_a_process_drains_on_sigterm(settings: Settings, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, _process(stage, tmp_path, 20) as process:
            await stage.put(task(0.5))
            await until_true(lambda: len(stage.beats[-1].held) == 1)
            process.send_signal(signal.SIGTERM)
            assert bytes((await stage.event(StepCompleted)).output) == b'"finished"'
            assert await _exit_status(process) == 0
            await until_true(lambda: stage.beats[-1].leaving)
            assert stage.beats[-1].presence.pid == process.pid
            # What comes now waits for another worker.
            await stage.put(task(0), run="r2")
            assert len(await stage.events()) == 1 and await stage.events("r2") == []

    asyncio.run(story())


@pytest.mark.slow
def test_a_process_ends_though_its_handlers_do_not(settings: Settings, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, _process(stage, tmp_path, 0.1) as process:
            await stage.put(task(), type_="stuck")
            await stage.put(task(), type_="deaf", run="r2")
            await until_true(lambda: len(stage.beats[-1].held) == 2)
            process.send_signal(signal.SIGTERM)
            assert await _exit_status(process) == 0
            await stage.event(TaskLost)
            await stage.event(TaskLost, "r2")

    asyncio.run(story())


@pytest.mark.slow
def test_an_exit_in_a_task_of_a_handler_does_not_end_the_process(
    settings: Settings, tmp_path: Path
) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, _process(stage, tmp_path, 20) as process:
            await stage.put(task(), type_="exits")
            event = await stage.event(StepFailed)
            assert event.failure.type == "SystemExit"
            await stage.put(task(0), run="r2")
            await stage.event(StepCompleted, "r2")
            process.send_signal(signal.SIGINT)
            assert await _exit_status(process) == 0

    asyncio.run(story())


@pytest.mark.slow
def test_a_process_ends_within_its_drain_while_the_server_is_away(
    own_server: NatsServer, namespace: str, tmp_path: Path
) -> None:
    async def story() -> None:
        settings = Settings(url=own_server.url, namespace=namespace)
        async with open_stage(settings) as stage, _process(stage, tmp_path, 1.5) as process:
            await stage.put(task(1.2))
            await until_true(lambda: len(stage.beats[-1].held) == 1)
            # Its handler ends, and the verdict waits for a server that does not come back.
            own_server.kill()
            begun_s = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert await _exit_status(process) == 0
            assert time.monotonic() - begun_s < 1.5 + 4.0

    asyncio.run(story())


@pytest.mark.slow
def test_a_second_signal_ends_the_process_at_once(settings: Settings, tmp_path: Path) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage, _process(stage, tmp_path, 600) as process:
            await stage.put(task(600))
            await until_true(lambda: len(stage.beats[-1].held) == 1)
            process.send_signal(signal.SIGTERM)
            pulls = stage.subjects.worker_consumer("work")

            async def waiting() -> int:
                answer = await stage.js.api(f"CONSUMER.INFO.{stage.subjects.steps_stream}.{pulls}")
                return int(answer["num_waiting"])

            # It drains when it has stopped to pull.
            while await waiting():
                await asyncio.sleep(0.01)
            process.send_signal(signal.SIGTERM)
            assert await _exit_status(process) == 128 + signal.SIGTERM

    asyncio.run(story())


# ------------------------------------------------------------------ beats, presence


def test_presence_and_beats_say_who_lives_and_what_it_holds(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker("alpha", concurrency=7)
        go_on = asyncio.Event()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            await go_on.wait()

        async with open_stage(settings) as stage, stage.running(worker):
            token = await stage.put(task(), step="one")
            await until_true(lambda: stage.beats[-1].held != ())
            beat = stage.beats[-1]
            (held,) = beat.held
            assert (held.run, held.step, held.type, held.token) == ("r1", "one", "work", token)
            assert held.executing_ms > 0
            await until_true(lambda: stage.beats[-1].held[0].executing_ms > held.executing_ms)
            assert not beat.leaving
            at = stage.subjects.worker(beat.presence.incarnation)
            stored = await stage.js.last(stage.subjects.workers_stream, at)
            assert stored is not None
            presence = msgspec.json.decode(stored.data, type=WorkerPresence)
            assert presence == beat.presence
            assert (presence.name, presence.types, presence.concurrency) == ("alpha", ("work",), 7)
            assert (presence.pid, presence.host) == (os.getpid(), host_id())
            go_on.set()
            await until_true(lambda: stage.beats[-1].held == ())

    asyncio.run(story())


def test_a_worker_is_known_before_it_is_given_a_task(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else what its first execution kills stands until the ack wait: nobody misses the process."""

    async def story() -> None:
        worker = Worker()
        is_called = threading.Event()
        heard: list[int] = []
        beat = Heartbeat._beat

        def late(self: Heartbeat, *args: Any, **kwargs: Any) -> None:
            is_called.wait(2)  # As on a machine that gives this thread no turn.
            beat(self, *args, **kwargs)

        async with open_stage(settings) as stage:

            @worker.handler("work")
            async def work(ctx: TaskContext[None]) -> None:
                await stage.connection.flush()  # What the server has, has come.
                heard.append(len(stage.beats))
                is_called.set()

            monkeypatch.setattr(Heartbeat, "_beat", late)
            await stage.put(task())
            async with stage.running(worker):
                await stage.event(StepCompleted)
        assert heard[0] > 0

    asyncio.run(story())


def test_a_worker_that_leaves_takes_its_presence_along(settings: Settings) -> None:
    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None: ...

        async with open_stage(settings) as stage:
            at = stage.subjects.all_workers
            async with stage.running(worker):
                look = partial(stage.js.last, stage.subjects.workers_stream, at)
                await until(look, lambda stored: stored is not None)
            # No engine runs: nobody else could have done it.
            assert stage.beats[-1].leaving and await look() is None

    asyncio.run(story())


# ------------------------------------------------------------------ the server


def test_a_consumer_that_is_made_anew_does_not_make_this_worker_execute_twice(
    settings: Settings,
) -> None:
    async def story() -> None:
        worker = Worker()
        executed: list[str] = []
        go_on = asyncio.Event()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> None:
            executed.append(ctx.run)
            if ctx.run == "r1":
                await go_on.wait()

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task(), run="r1")
            await stage.put(task(), run="r2")
            await stage.event(StepCompleted, "r2")
            stream = stage.subjects.steps_stream
            await stage.js.api(f"CONSUMER.DELETE.{stream}.{stage.subjects.worker_consumer('work')}")
            await stage.put(task(), run="r3")
            await stage.event(StepCompleted, "r3")  # It was made anew.
            go_on.set()
            await stage.event(StepCompleted, "r1")
            await stage.until_acked()
            assert sorted(executed) == ["r1", "r2", "r3"]
            for run in executed:
                assert len(await stage.events(run)) == 1

    asyncio.run(story())


def test_a_server_that_is_killed_meanwhile_costs_no_execution(own_server: NatsServer) -> None:
    async def story() -> None:
        settings = Settings(url=own_server.url)
        worker = Worker()
        executed: list[str] = []
        go_on = asyncio.Event()

        @worker.handler("work")
        async def work(ctx: TaskContext[None]) -> Any:
            executed.append(ctx.run)
            await go_on.wait()
            await ctx.checkpoint("kept")
            return "kept"

        async with open_stage(settings) as stage, stage.running(worker):
            token = await stage.put(task())
            await until_true(lambda: executed != [])
            own_server.kill()
            go_on.set()
            await until_true(lambda: not stage.connection.is_connected)
            own_server.restart()
            await until_true(lambda: stage.connection.is_connected)
            event = await stage.event(StepCompleted)
            assert (event.token, bytes(event.output)) == (token, b'"kept"')
            assert event.head == (await stage.checkpoint())[0].sequence
            await stage.until_acked()
            assert executed == ["r1"]

    asyncio.run(story())


def test_a_worker_without_handlers_says_so(settings: Settings) -> None:
    with pytest.raises(HandlerError, match="no handlers"):
        asyncio.run(Worker().run(settings))


def test_a_worker_leaves_no_thread_behind(settings: Settings) -> None:
    before = set(threading.enumerate())

    async def story() -> None:
        worker = Worker()

        @worker.handler("work")
        def work(ctx: SyncTaskContext[None]) -> None: ...

        async with open_stage(settings) as stage, stage.running(worker):
            await stage.put(task())
            await stage.event(StepCompleted)

    asyncio.run(story())
    give_up_s = time.monotonic() + 20
    while any(thread.name.startswith("treadle-") for thread in set(threading.enumerate()) - before):
        assert time.monotonic() < give_up_s
        time.sleep(0.01)
