"""Metrics of real runs: over OTLP, scraped by Prometheus, and with a collector that refuses them.
Method: ``treadle engine`` and ``treadle worker`` as processes, and a collector on this machine."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import re
import socket
import sys
import urllib.request
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from tests.nursery import Nursery
from tests.telemetry.metrics_receiver import Metrics, metrics_receiver

from treadle.cli import logs, meters
from treadle.cli.main import main
from treadle.engine import Engine
from treadle.engine.telemetry import metering
from treadle.sdk import Client, Retry, Workflow
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.worker import LoopContext, TaskContext, Worker

PATIENCE_S = 30
pytestmark = pytest.mark.timeout(3 * PATIENCE_S)

APP = """
from treadle.sdk import Workflow
from treadle.worker import Worker

hello = Workflow("hello")
hello.task("greet", "greet")
worker = Worker(concurrency=7)

@worker.handler("greet")
async def greet(ctx):
    return "hello"
"""
OWN_PROVIDER = """
from opentelemetry import metrics
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource

reader = PeriodicExportingMetricReader(OTLPMetricExporter(), export_interval_millis=100)
metrics.set_meter_provider(MeterProvider([reader], Resource({"whose": "mine"})))
"""


async def until(condition: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE_S):
        while not condition():
            await asyncio.sleep(0.02)


@functools.cache
def nursery() -> Nursery:
    made = Nursery(
        "treadle.cli.run",
        "treadle.engine",
        "treadle.worker",
        "opentelemetry.exporter.otlp.proto.http.metric_exporter",
        "opentelemetry.exporter.prometheus",
    )
    atexit.register(made.close)
    return made


@asynccontextmanager
async def process(
    settings: Settings, log: Path, *arguments: str, **env: str
) -> AsyncGenerator[None]:
    """Run ``treadle`` with its lines in a file; end it, and see that it ends well."""
    here = {"TREADLE_NATS_URL": settings.url, "TREADLE_NAMESPACE": settings.namespace, **env}
    # What is inherited would reach a collector of this machine's.
    base = {k: v for k, v in os.environ.items() if not k.startswith(("OTEL_", "TREADLE_"))}
    log.touch()
    child = nursery().start("treadle.cli", *arguments, env=base | here, log=log, is_alone=True)
    try:
        yield
    finally:
        child.terminate()
        assert await asyncio.to_thread(child.wait, PATIENCE_S) == 0, log.read_text()


def exporting(taken: Metrics) -> dict[str, str]:
    return {
        "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": taken.endpoint,
        "OTEL_METRIC_EXPORT_INTERVAL": "100",
    }


@asynccontextmanager
async def served(
    settings: Settings, tmp_path: Path, engine: dict[str, str], worker: dict[str, str]
) -> AsyncGenerator[Client]:
    """Run an engine with a Prometheus endpoint, and a worker of app.py."""
    app = tmp_path / "app.py"
    if not app.exists():
        app.write_text(APP)
    engine_log, worker_log = tmp_path / "engine.log", tmp_path / "worker.log"
    async with (
        process(settings, engine_log, "engine", "--metrics-port", "0", "--json", **engine),
        process(settings, worker_log, "worker", str(app), "--json", **worker),
    ):
        await until(lambda: "worker.ready" in worker_log.read_text())
        async with Client.connect(settings=settings) as client:
            yield client


async def scraped(tmp_path: Path) -> str:
    """Return what Prometheus would read of the engine."""
    log = tmp_path / "engine.log"
    await until(lambda: "engine.metrics-served" in log.read_text())
    found = re.search(r"http://127\.0\.0\.1:\d+/metrics", log.read_text())
    assert found, log.read_text()

    def read(url: str) -> str:
        with urllib.request.urlopen(url, timeout=PATIENCE_S) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(read, found[0])


@pytest.mark.slow
def test_engine_and_worker_send_metrics_over_otlp_and_prometheus_reads_the_same(
    settings: Settings, tmp_path: Path
) -> None:
    async def story(taken: Metrics) -> None:
        to = exporting(taken)
        async with served(settings, tmp_path, to, to) as client:
            run = await client.start("hello", id="run-with-a-name")
            assert await run.result() == "hello"
            await until(lambda: taken.total("treadle.run.completed", status="completed") == 1)
            await until(lambda: taken.total("treadle.worker.slots") == 7)
            assert taken.total("treadle.run.duration", name="hello") == 1
            assert taken.total("treadle.task.queue.wait", type="greet") == 1
            text = await scraped(tmp_path)
            assert re.search(r'^treadle_run_completed_total\{.*"hello".*\} 1\.0$', text, re.M)
            assert re.search(r"^treadle_task_queue_wait_seconds_bucket\{.*\} 1\.0$", text, re.M)
            assert re.search(r"^treadle_engine_event_lag_seconds(\{.*\})? 0\.0$", text, re.M)
            whole = b"".join(taken.bodies) + text.encode()
            assert b"run-with-a-name" not in whole

    with metrics_receiver() as taken:
        asyncio.run(story(taken))
    services = {each["service.name"] for each in taken.resources}
    assert services == {"treadle"}
    assert len({each["service.instance.id"] for each in taken.resources}) == 2


@pytest.mark.slow
def test_a_collector_that_refuses_changes_neither_runs_nor_what_prometheus_reads(
    settings: Settings, tmp_path: Path
) -> None:
    async def story(taken: Metrics) -> None:
        to = exporting(taken)
        taken.is_refusing = True
        # Traces have a collector that nobody runs.
        dead = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces",
            "OTEL_EXPORTER_OTLP_TIMEOUT": "1",
        }
        async with served(settings, tmp_path, to | dead, to) as client:
            for _ in range(3):
                run = await client.start("hello")
                assert await run.result() == "hello"
            await until(lambda: taken.refused)
            async with asyncio.timeout(PATIENCE_S):
                while not re.search(
                    r"^treadle_run_completed_total\{.*\} 3\.0$", await scraped(tmp_path), re.M
                ):
                    await asyncio.sleep(0.1)
            assert not taken.points
            # Spans go from a process of its own, which logs as its engine does.
            log = tmp_path / "engine.log"
            await until(lambda: "telemetry.export-refused" in log.read_text())
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        refused = next(each for each in lines if each.get("event") == "telemetry.export-refused")
        assert refused["logger"] == "treadle.telemetry" and refused["level"] == "warning"
        why = r"http://127\.0\.0\.1:9/v1/traces: (ConnectionRefusedError|no answer in time)"
        assert re.search(why, refused["msg"]), refused["msg"]

    with metrics_receiver() as taken:
        asyncio.run(story(taken))


@pytest.mark.slow
def test_a_provider_of_the_users_file_gets_the_workers_metrics_and_is_not_replaced(
    settings: Settings, tmp_path: Path
) -> None:
    async def story(taken: Metrics, ours: Metrics) -> None:
        (tmp_path / "app.py").write_text(OWN_PROVIDER + APP)
        to = {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": taken.endpoint}
        async with served(settings, tmp_path, exporting(ours), to) as client:
            await (await client.start("hello")).result()
            await until(lambda: taken.total("treadle.worker.slots") == 7)
            await until(lambda: ours.total("treadle.run.completed") == 1)

    with metrics_receiver() as taken, metrics_receiver() as ours:
        asyncio.run(story(taken, ours))
    assert all(each == {"whose": "mine"} for each in taken.resources)
    assert not any("treadle.worker.slots" in points for points in ours.points)


def test_a_port_that_is_taken_is_an_error_before_anything_runs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(logs, "configure", lambda **_: None)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with pytest.raises(SystemExit) as ended:
            main(["engine", "--metrics-port", port])
    error = capsys.readouterr().err
    assert ended.value.code == 2
    assert f"127.0.0.1:{port}" in error and "--metrics-port" in error


def test_without_the_extra_a_worker_starts_and_warns_once_and_an_engine_refuses(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, meters.OTLP, None)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    with meters.metering(meters.Endpoint(), role="worker") as meter:
        assert meter is None
    (warning,) = caplog.messages
    for name in ("OTEL_EXPORTER_OTLP_ENDPOINT", "treadle[otel]", "OTEL_METRICS_EXPORTER=none"):
        assert name in warning
    refused = pytest.raises(UserError, match=r"^OTEL_EXPORTER_OTLP_ENDPOINT names a collector")
    with refused, meters.metering(meters.Endpoint(), role="engine"):
        pass
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "none")
    with meters.metering(meters.Endpoint(), role="engine") as meter:
        assert meter is None
    assert len(caplog.messages) == 1


# ---------------------------------------------------------------- in this process


class Reader:
    """An engine's meter, and what it has counted."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider(metric_readers=[self._reader], shutdown_on_exit=False)
        self.meter = self.provider.get_meter("treadle")

    def points(self, name: str) -> list[Any]:
        data: Any = self._reader.get_metrics_data()
        return [
            point
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]

    def total(self, metric: str, **wanted: str) -> float:
        return sum(
            getattr(point, "value", getattr(point, "count", 0))
            for point in self.points(metric)
            if all(
                any(key.endswith(word) and value == want for key, value in point.attributes.items())
                for word, want in wanted.items()
            )
        )


@asynccontextmanager
async def engine(settings: Settings, reader: Reader) -> AsyncGenerator[None]:
    serving = Engine(settings, meter=reader.meter)
    task = asyncio.create_task(serving.run())
    await serving.ready.wait()
    try:
        yield
    finally:
        serving.stop()
        await task


@asynccontextmanager
async def working(settings: Settings, worker: Worker) -> AsyncGenerator[Client]:
    task = asyncio.create_task(worker.run(settings))
    try:
        async with Client.connect(settings=settings) as client:
            yield client
    finally:
        worker.stop()
        await task


def a_worker() -> Worker:
    worker = Worker()
    failed: set[str] = set()

    @worker.handler("fetch")
    async def fetch(ctx: TaskContext[Any]) -> Any:
        if ctx.input == "bad":
            raise ValueError("bad")
        return ctx.input

    @worker.handler("think")
    async def think(ctx: LoopContext[Any]) -> Any:
        if ctx.iteration == 1 and ctx.run not in failed:
            failed.add(ctx.run)
            raise RuntimeError("no luck")
        return ctx.continue_(ctx.input) if ctx.iteration < 3 else ctx.complete("done")

    return worker


def report() -> Workflow[Any]:
    workflow: Workflow[Any] = Workflow("report")
    workflow.task("fetch", "fetch", retry=Retry(max_attempts=1))
    workflow.agent_loop(
        "think",
        "think",
        after=["fetch"],
        max_iterations=9,
        retry=Retry(max_attempts=3, delay_s=0.01),
    )
    return workflow


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Readers of this process look more often."""
    monkeypatch.setattr(metering, "TURN_S", 0.1)
    monkeypatch.setattr(metering, "SURVEY_S", 0.2)
    monkeypatch.setattr(metering, "LOOK_S", 0.05)


def test_runs_steps_executions_retries_and_dead_letters_are_counted(settings: Settings) -> None:
    reader = Reader()

    async def story() -> None:
        async with engine(settings, reader), working(settings, a_worker()) as client:
            good = await client.start(report(), "good")
            bad = await client.start(report(), "bad")
            assert await good.result() == "done"
            await until(lambda: reader.total("treadle.run.completed") == 2)
            await until(lambda: reader.total("treadle.dead_letters", reason="run_failed") == 1)
            assert (await bad.get()).status == "failed"
            failed = reader.points("treadle.run.completed")
            assert {p.attributes.get("error.type") for p in failed} == {None, "ValueError"}
            assert reader.total("treadle.run.started", name="report") == 2
            assert reader.total("treadle.step.duration", status="completed") == 2
            assert reader.total("treadle.step.duration", status="failed") == 1
            assert reader.total("treadle.task.attempt.duration", outcome="ok") == 5
            assert reader.total("treadle.task.attempt.duration", outcome="error") == 2
            assert reader.total("treadle.task.retries", type="RuntimeError") == 1
            (loop,) = reader.points("treadle.loop.iterations")
            assert (loop.sum, loop.attributes["treadle.stop_reason"]) == (4, "completed")

    asyncio.run(story())


def test_a_task_type_without_a_worker_is_seen_as_active_tasks_and_no_workers(
    settings: Settings,
) -> None:
    reader = Reader()

    async def story() -> None:
        async with engine(settings, reader), Client.connect(settings=settings) as client:
            await client.start(report(), "good", id="run-with-a-name")
            await until(lambda: reader.total("treadle.task.active", type="fetch") == 1)
            await until(lambda: reader.points("treadle.task.workers"))
            assert [p.value for p in reader.points("treadle.task.workers")] == [0]
            assert reader.total("treadle.run.active", status="running") == 1
            await until(lambda: reader.points("treadle.run.unmoved")[0].value > 0)
            async with working(settings, a_worker()):
                await until(lambda: reader.total("treadle.run.completed") == 1)
                await until(lambda: reader.total("treadle.run.active") == 0)
                await until(lambda: reader.total("treadle.task.workers", type="fetch") == 1)
                assert reader.total("treadle.task.queue.pending") == 0

    asyncio.run(story())


def test_events_that_no_engine_handles_are_a_lag(settings: Settings) -> None:
    reader = Reader()

    async def story() -> None:
        from treadle.engine.telemetry import survey
        from treadle.sdk.bus.connection import Connection
        from treadle.sdk.bus.jetstream import JetStream
        from treadle.sdk.namespace import open_namespace

        async with engine(settings, reader), Client.connect(settings=settings) as client:
            await client.register(report())
            await until(lambda: reader.points("treadle.engine.event.lag"))
        # Nobody serves now.
        async with Client.connect(settings=settings) as client:
            await client.start("report", "good")
            connection = await Connection.open(settings, name="test")
            try:
                js = JetStream(connection)
                subjects = await open_namespace(js, settings)
                points = await survey.look(js, subjects, [], ["fetch"])
                await asyncio.sleep(0.01)
            finally:
                await connection.close()
        shown = {point.instrument.name: point.value for point in points}
        assert shown["treadle.engine.event.pending"] == 1
        assert shown["treadle.engine.event.lag"] > 0

    asyncio.run(story())


def test_the_next_engine_goes_on_counting_where_the_last_one_was(settings: Settings) -> None:
    first, second = Reader(), Reader()

    async def story() -> None:
        async with working_later(settings) as client:
            async with engine(settings, first):
                waiting = await client.start(report(), "good", id="waiting")
                await until(lambda: first.total("treadle.run.started") == 1)
                await until(lambda: first.total("treadle.run.active") == 1)
            async with engine(settings, second), working(settings, a_worker()):
                assert await waiting.result() == "done"
                await until(lambda: second.total("treadle.run.completed") == 1)
                await until(lambda: second.total("treadle.step.duration") == 2)
        assert (first.total("treadle.run.completed"), second.total("treadle.run.started")) == (0, 0)

    asyncio.run(story())


def test_a_definition_or_a_cursor_that_cannot_be_read_stops_no_counting(settings: Settings) -> None:
    reader = Reader()

    async def garble(*subjects: str) -> None:
        connection = await Connection.open(settings, name="test")
        for subject in subjects:
            await JetStream(connection).store(subject, b"\xff")
        await connection.close()

    async def story() -> None:
        names = Subjects(settings.namespace)
        async with working_later(settings) as client:
            rotten = Workflow[Any]("rotten")
            rotten.task("fetch", "fetch")
            version = await client.register(rotten)
            await client.start("rotten", id="rotten")
            await garble(names.workflow_version("rotten", version), names.cursor("metrics"))
            async with engine(settings, reader), working(settings, a_worker()):
                good = await client.start(report(), "good")
                assert await good.result() == "done"
                await until(lambda: reader.total("treadle.run.completed", name="report") == 1)

    asyncio.run(story())


@asynccontextmanager
async def working_later(settings: Settings) -> AsyncGenerator[Client]:
    """A client of a namespace that an engine has set up and left."""
    setting_up = Engine(settings)
    task = asyncio.create_task(setting_up.run())
    await setting_up.ready.wait()
    setting_up.stop()
    await task
    async with Client.connect(settings=settings) as client:
        yield client
