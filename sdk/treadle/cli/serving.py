"""Processes that serve until they are told to stop: an engine, or the worker of a file."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

from treadle.cli import exits, lineage, logs, meters, output, traces
from treadle.sdk.errors import UserError
from treadle.sdk.settings import Settings
from treadle.sdk.wording import Suggestions

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter

    from treadle.cli.app import App
    from treadle.worker import Worker


class Kept(NamedTuple):
    """How long an engine keeps what is over."""

    runs_s: float
    """Of runs, from their ends; 0 is without end."""
    output_s: float | None
    """Of what runs say; None leaves it as it is."""


def serve_engine(
    url: str | None,
    namespace: str | None,
    name: str,
    partitions: int,
    replicas: int,
    kept: Kept,
    metrics: meters.Endpoint,
    *,
    as_json: bool,
) -> int:
    """Run an engine until SIGTERM or Ctrl-C."""
    from treadle.engine import Engine
    from treadle.engine.index.beside import Indexing

    lineage.end_with_parent()
    logs.configure(as_json=as_json)
    settings = Settings.from_env(url=url, namespace=namespace)

    tracing = traces.tracing()

    async def run(meter: Meter | None) -> None:
        engine = Engine(
            settings,
            name=name,
            partitions=partitions,
            replicas=replicas,
            retention_s=kept.runs_s,
            output_max_age_s=kept.output_s,
            tracing=tracing,
            meter=meter,
            indexing=Indexing(as_process=True),
        )
        _on_signals(engine.stop)
        await engine.run()

    with meters.metering(metrics, role="engine") as meter:
        if sys.platform == "win32":
            asyncio.run(run(meter))
        else:
            import uvloop

            uvloop.run(run(meter))
    return exits.OK


def serve_http(
    url: str | None, namespace: str | None, host: str, port: int, *, as_json: bool
) -> int:
    """Run a gateway until SIGTERM or Ctrl-C."""
    lineage.end_with_parent()
    logs.configure(as_json=as_json)
    try:
        from treadle.engine.gateway import Gateway
    except ModuleNotFoundError as exc:
        raise UserError(
            f"the gateway needs {exc.name}, which is not installed. Install the extra: "
            "`pip install 'treadle[http]'`."
        ) from exc
    settings = Settings.from_env(url=url, namespace=namespace)
    gateway = Gateway(settings, host=host, port=port)

    async def run() -> None:
        _on_signals(gateway.stop)
        serving = asyncio.create_task(gateway.run())
        ready = asyncio.create_task(gateway.ready.wait())
        await asyncio.wait({serving, ready}, return_when=asyncio.FIRST_COMPLETED)
        ready.cancel()
        where = f"http://{gateway.host}:{gateway.port}"
        if as_json and not serving.done():
            output.emit({"event": "http.ready", "url": where})
        elif not serving.done():
            output.say(f"listening on {where}: POST /hooks/NAME and /api/PATH")
        await serving

    asyncio.run(run())
    return exits.OK


def serve_worker(
    target: str,
    url: str | None,
    namespace: str | None,
    metrics: meters.Endpoint,
    *,
    registers: bool,
    as_json: bool,
) -> int:
    """Register a file's workflows and run its worker until SIGTERM or Ctrl-C."""
    from treadle.cli import app
    from treadle.worker import serve

    lineage.end_with_parent()
    logs.configure(as_json=as_json)
    settings = Settings.from_env(url=url, namespace=namespace)
    with lineage.telling_sources():
        loaded = app.load(target)
    worker = app.worker_of(loaded)
    if not as_json:
        _remark_unserved(loaded, worker)
    if loaded.workflows and registers:
        asyncio.run(_register(loaded, settings))
    # After the import: the file may set a provider of its own.
    with meters.metering(metrics, role="worker"):
        serve(worker, settings)
    return exits.OK


async def _register(loaded: App, settings: Settings) -> None:
    """Register the workflows, as soon as there is a namespace."""
    from treadle.sdk.bus.connection import Connection
    from treadle.sdk.bus.jetstream import JetStream
    from treadle.sdk.client import Client
    from treadle.sdk.client.store import Store
    from treadle.sdk.namespace import awaited_namespace

    connection = await Connection.open(settings, name="treadle-register")
    try:
        js = JetStream(connection, message_ids=settings.message_ids)

        def tell() -> None:
            output.remark(
                f"namespace {settings.namespace!r} is not set up on this server yet; waiting for "
                "an engine to do it: treadle engine"
            )

        subjects = await awaited_namespace(js, settings, asyncio.Event(), tell)
        assert subjects is not None, "nothing has stopped it"
        client = Client(Store(js, subjects))
        for definition in loaded.workflows:
            await client.register(definition)
    finally:
        await connection.close()


def _remark_unserved(loaded: App, worker: Worker) -> None:
    """Say which steps wait for another worker, or for a handler whose name is misspelt."""
    for definition in loaded.workflows:
        for step in definition.steps:
            task_type = getattr(step, "type", "")
            if task_type and task_type not in worker.handlers:
                near = Suggestions().nearest(task_type, worker.handlers)
                hint = f"Did you mean {near!r}? If not, another" if near else "Another"
                output.remark(
                    f"note: step {step.id!r} of workflow {definition.name!r} has the task type "
                    f"{task_type!r}, and {loaded.source} has no handler for it. {hint} worker has "
                    "to serve it."
                )


def _on_signals(stop: Callable[[], None]) -> None:
    """Stop gracefully at the first signal; at the second one as Python does."""
    loop = asyncio.get_running_loop()

    def first() -> None:
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(each)
        stop()

    if sys.platform != "win32":
        for each in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(each, first)
