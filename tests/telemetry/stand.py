"""A run with a collector: a real server, an engine that exports to it, and a worker beside."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from opentelemetry.metrics import Meter
from tests.telemetry.receiver import Collector, collector

from treadle.engine import Engine
from treadle.engine.telemetry.beside import Tracing
from treadle.engine.telemetry.exporting import OtlpExport
from treadle.engine.telemetry.projector import Send
from treadle.sdk import Client
from treadle.sdk.settings import Settings
from treadle.worker import Worker

PATIENCE_S = 30


@contextmanager
def exporting(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Collector, OtlpExport]]:
    """Run a collector, and return it with what sends to it."""
    with collector() as taken:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", taken.endpoint)
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "2")
        export = OtlpExport()
        try:
            yield taken, export
        finally:
            export.close()


@dataclass
class Stand:
    """What a test plays on."""

    client: Client
    worker: Worker
    collector: Collector
    settings: Settings

    async def traced(self, run: str) -> None:
        """Wait until the whole run has arrived at the collector."""
        async with asyncio.timeout(PATIENCE_S):
            while not self.collector.has_ended(run):
                await asyncio.sleep(0.02)


@asynccontextmanager
async def working(
    settings: Settings,
    worker: Worker,
    send: Send,
    *,
    live: bool = False,
    content: bool = False,
    meter: Meter | None = None,
) -> AsyncGenerator[Client]:
    """Run an engine that exports and a worker; return a client of theirs."""
    tracing = Tracing(send, is_live=live, with_content=content)
    engine = Engine(settings, tracing=tracing, meter=meter)
    engine_task = asyncio.create_task(engine.run())
    await engine.ready.wait()
    worker_task = asyncio.create_task(worker.run(settings))
    try:
        async with Client.connect(settings=settings) as client:
            yield client
    finally:
        worker.stop()
        await worker_task
        engine.stop()
        await engine_task


@asynccontextmanager
async def stand(
    settings: Settings, worker: Worker, taken: Collector, export: OtlpExport, **options: Any
) -> AsyncGenerator[Stand]:
    """Set everything up, with the options of ``working``, and take it down."""
    async with working(settings, worker, export.send, **options) as client:
        yield Stand(client, worker, taken, settings)
