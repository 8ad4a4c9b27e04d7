"""Storage that is full refuses, it never drops: what was acknowledged waits until there is room.
Method: a real server with a small budget, or a stream of a small size, filled by starts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand, loop, open_stand

from treadle.engine import intake, overdue, runs
from treadle.sdk import ServerUnavailable, UnknownRun, Workflow
from treadle.sdk.bus.jetstream import ApiError, JetStream
from treadle.sdk.messages import Ended
from treadle.sdk.server import NatsServer
from treadle.sdk.settings import Settings
from treadle.worker import LoopContext, Worker
from treadle.worker.verdict import Complete, Continue

pytestmark = pytest.mark.slow

BUDGET_MB = 3
INPUT_BYTES = 100_000
"""Larger than what travels inside a task, so that a start is most of what a run stores."""
ITERATIONS = 30


class SmallServer(NatsServer):
    """A server whose JetStream may store only so much."""

    budget_mb = BUDGET_MB

    def _config(self) -> str:
        budget = f"jetstream {{\n  max_file_store: {self.budget_mb}MB"
        return super()._config().replace("jetstream {", budget)


@pytest.fixture
def small_server(tmp_path: Path) -> Iterator[SmallServer]:
    """A server of this test's own, with little room."""
    running = SmallServer.start(tmp_path / "nats")
    assert isinstance(running, SmallServer)
    yield running
    running.stop()


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever writes asks for a moment, not a quarter of a minute; events come again sooner."""
    for method in (JetStream.store, JetStream.compare_and_set):
        defaults: dict[str, Any] = method.__kwdefaults__ or {}
        monkeypatch.setitem(defaults, "budget_s", 0.2)
    monkeypatch.setattr(intake, "FAILED_LATER_MS", 20)
    monkeypatch.setattr(intake, "POISON_DELIVERIES", 3)


def counting(gate: asyncio.Event) -> Worker:
    """Return a worker whose loop counts up from the length of its input, once the gate is open."""
    worker = Worker()

    @worker.handler("link")
    async def count(ctx: LoopContext[Any]) -> Continue | Complete:
        if ctx.iteration:
            await gate.wait()
        have = len(ctx.input) if isinstance(ctx.input, str) else int(ctx.input)
        await ctx.checkpoint(have)
        if ctx.iteration + 1 < ITERATIONS:
            return ctx.continue_(have + 1)
        return ctx.complete(have + 1)

    return worker


async def _start_until_refused(stand: Stand) -> list[str]:
    """Start runs until one is refused; return those that were acknowledged."""
    runs: list[str] = []
    with pytest.raises(ServerUnavailable, match="full") as caught:
        while len(runs) < 200:
            run = f"run{len(runs)}"
            await stand.client.start(loop(), "x" * INPUT_BYTES, id=run)
            runs.append(run)
    assert "Delete old runs, or raise its limits." in str(caught.value)
    assert runs
    with pytest.raises(UnknownRun):
        await stand.client.get(f"run{len(runs)}")
    return runs


async def _handed_back(stand: Stand) -> None:
    """Wait until every event in hand has come again, more often than a poisoned one may."""
    name = f"{stand.subjects.events_stream}.{stand.subjects.engine_consumer(0)}"

    async def rounds() -> int:
        info = await stand.js.api(f"CONSUMER.INFO.{name}")
        again = int(info["delivered"]["consumer_seq"]) - int(info["delivered"]["stream_seq"])
        return again // max(1, int(info["num_ack_pending"]))

    await stand.until("events come again", rounds, lambda n: n > 2 * intake.POISON_DELIVERIES)


async def _all_complete(stand: Stand, runs: list[str]) -> None:
    for run in runs:
        assert await stand.client.result(run, timeout_s=20) == INPUT_BYTES + ITERATIONS
    assert await stand.letters() == []


# ---------------------------------------------------------------- the whole store


async def _by_deleting(stand: Stand, server: SmallServer) -> None:
    await stand.js.api("STREAM.DELETE.ballast")


async def _by_a_larger_budget(stand: Stand, server: SmallServer) -> None:
    server.budget_mb = 64
    server.restart()


@pytest.mark.parametrize("make_room", [_by_deleting, _by_a_larger_budget])
def test_a_full_store_refuses_and_loses_nothing_and_goes_on_when_there_is_room(
    small_server: SmallServer,
    namespace: str,
    make_room: Callable[[Stand, SmallServer], Awaitable[None]],
) -> None:
    async def story() -> None:
        settings = Settings(url=small_server.url, namespace=namespace)
        async with open_stand(settings) as stand:
            gate = asyncio.Event()
            await stand.js.ensure_stream({"name": "ballast", "subjects": ["ballast"]})
            await stand.js.store("ballast", bytes(900_000))
            await stand.engine()
            stand.worker(counting(gate))
            runs = await _start_until_refused(stand)
            with pytest.raises(ServerUnavailable, match="full"):
                await stand.client.signal(runs[0], "note")
            with pytest.raises(ServerUnavailable, match="full"):
                await stand.client.cancel(runs[0])
            gate.set()
            await _handed_back(stand)
            await make_room(stand, small_server)
            await _all_complete(stand, runs)

    asyncio.run(story())


def test_an_engine_starts_on_a_store_that_is_full(
    small_server: SmallServer, namespace: str
) -> None:
    async def story() -> None:
        settings = Settings(url=small_server.url, namespace=namespace)
        async with open_stand(settings) as stand:
            gate = asyncio.Event()
            gate.set()
            await stand.js.ensure_stream({"name": "ballast", "subjects": ["ballast"]})
            await stand.js.store("ballast", bytes(900_000))
            runs = await _start_until_refused(stand)
            await stand.engine()
            stand.worker(counting(gate))
            await _handed_back(stand)
            await stand.js.api("STREAM.DELETE.ballast")
            await _all_complete(stand, runs)

    asyncio.run(story())


@pytest.mark.parametrize("deadline", ["step", "run"])
def test_a_timer_that_is_due_while_the_store_is_full_fires_when_there_is_room(
    small_server: SmallServer, namespace: str, monkeypatch: pytest.MonkeyPatch, deadline: str
) -> None:
    monkeypatch.setattr(overdue, "SWEEP_S", 0.2)
    monkeypatch.setattr(overdue, "OVERDUE_MS", 500)

    async def story() -> None:
        settings = Settings(url=small_server.url, namespace=namespace)
        async with open_stand(settings) as stand:
            await stand.js.ensure_stream({"name": "ballast", "subjects": ["ballast"]})
            await stand.engine()
            workflow = Workflow("impatient", timeout=1.0 if deadline == "run" else 0)
            workflow.wait_for_signal("approval", timeout=1.0 if deadline == "step" else 0)
            await stand.client.start(workflow, id="run")
            await stand.until("its timer is set", lambda: _timers(stand), lambda n: n == 1)
            while True:
                try:
                    await stand.js.attempt("ballast", bytes(500_000))
                except ApiError:
                    break
            started_ms = (await stand.status("run", "running")).requested_ms
            late_ms = started_ms + 2_500
            await stand.until("it is overdue", _now_ms, lambda now_ms: now_ms > late_ms)
            await stand.status("run", "running")
            await stand.js.api("STREAM.DELETE.ballast")
            ended = await stand.ended()
            assert ended.failure is not None
            assert ended.failure.type == ("timeout" if deadline == "step" else "run_timeout")

    asyncio.run(story())


def test_a_client_of_a_full_store_is_told_soon_and_the_truth_about_who_lives(
    small_server: SmallServer, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for method in (JetStream.store, JetStream.compare_and_set):
        monkeypatch.setitem(method.__kwdefaults__ or {}, "budget_s", 15.0)

    async def story() -> None:
        settings = Settings(url=small_server.url, namespace=namespace)
        async with open_stand(settings) as stand:
            await stand.engine()
            stand.worker(counting(asyncio.Event()))
            await stand.client.start(loop(), "x", id="run")
            await stand.reached(1)
            await stand.js.ensure_stream({"name": "ballast", "subjects": ["ballast"]})
            await _fill(stand)
            # What was stored of the processes expires, and nothing new can be.
            while await stand.client.processes():
                await stand.js.purge(stand.subjects.workers_stream, stand.subjects.all_workers)
                await _fill(stand)
            notes = (await stand.client.get("run")).notes
            assert not [note.text for note in notes if "no engine" in note.text.lower()]
            assert not [note.text for note in notes if "worker" in note.text]
            begun = time.monotonic()
            with pytest.raises(ServerUnavailable, match="full"):
                await stand.client.cancel("run")
            with pytest.raises(ServerUnavailable, match="full"):
                await stand.client.send("run", "loop", "hello")
            assert time.monotonic() - begun < 10
            await stand.js.api("STREAM.DELETE.ballast")
            await stand.client.cancel("run")
            await stand.ended()

    asyncio.run(story())


async def _fill(stand: Stand) -> None:
    """Store ballast until not even a small message is taken."""
    for size in (500_000, 20_000, 500):
        with pytest.raises(ApiError):
            while True:
                await stand.js.attempt("ballast", bytes(size))


async def _now_ms() -> float:
    return time.time() * 1000


async def _timers(stand: Stand) -> int:
    return int((await stand.state(stand.subjects.timers_stream))["messages"])


# ---------------------------------------------------------------- one stream


async def _limit(stand: Stand, stream: str, max_bytes: int) -> None:
    config: dict[str, Any] = (await stand.js.api(f"STREAM.INFO.{stream}"))["config"]
    await stand.js.api(f"STREAM.UPDATE.{stream}", {**config, "max_bytes": max_bytes})


@pytest.mark.parametrize("kind", ["events", "steps", "runs"])
def test_a_full_stream_costs_no_task_and_no_event(play: Play, kind: str) -> None:
    async def story(stand: Stand) -> None:
        gate = asyncio.Event()
        stream = str(getattr(stand.subjects, f"{kind}_stream"))
        await stand.engine()
        stand.worker(counting(gate))
        started = [f"run{number}" for number in range(4)]
        for run in started:
            await stand.client.start(loop(), "x" * INPUT_BYTES, id=run)
            await stand.reached(1, run)
        await stand.quiet(0.2)
        await _limit(stand, stream, int((await stand.state(stream))["bytes"]))
        if kind == "events":
            with pytest.raises(ServerUnavailable, match="full"):
                await stand.client.start(loop(), "x" * INPUT_BYTES, id="late")
            gate.set()
        else:
            for run in ("late1", "late2", "late3"):
                await stand.client.start(loop(), "x" * INPUT_BYTES, id=run)
                started.append(run)
            gate.set()
            await _handed_back(stand)
        await _limit(stand, stream, -1)
        await _all_complete(stand, started)

    play(story)


def test_a_signal_waits_for_its_run_however_long_that_cannot_be_stored(
    play: Play, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runs, "UNKNOWN_RUN_DELIVERIES", 4)

    async def story(stand: Stand) -> None:
        await stand.engine()
        await stand.engine()
        workflow = Workflow("waits")
        workflow.wait_for_signal("go")
        await stand.client.start(workflow, id="first")
        await stand.status("first", "running")
        documents = stand.subjects.runs_stream
        await _limit(stand, documents, int((await stand.state(documents))["bytes"]))
        await stand.client.start(workflow, id="run")
        await stand.client.signal("run", "go", "kept")
        await _handed_back(stand)
        await _limit(stand, documents, -1)
        assert await stand.client.result("run", timeout_s=10) == "kept"
        assert await stand.letters() == []

    play(story)


def test_a_run_that_fails_waits_for_room_for_its_dead_letter(play: Play) -> None:
    async def story(stand: Stand) -> None:
        gate = asyncio.Event()
        gate.set()
        await stand.engine()
        await stand.publish(b"no event", "broken")
        await stand.letter("broken")
        dead = stand.subjects.dead_stream
        await _limit(stand, dead, int((await stand.state(dead))["bytes"]))
        stand.worker(counting(gate))
        await stand.client.start(loop(max_iterations=2), "x", id="run")
        await stand.publish(b"no event either", "broken")
        await stand.holds(Ended)
        await _handed_back(stand)
        await stand.status("run", "running")
        assert len(await stand.letters()) == 1
        await _limit(stand, dead, -1)
        assert (await stand.ended()).status == "failed"
        await stand.until("both letters", stand.letters, lambda found: len(found) == 3)

    play(story)
