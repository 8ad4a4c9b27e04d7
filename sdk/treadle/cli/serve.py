"""``treadle dev``, ``treadle engine`` and ``treadle worker``: their arguments."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any

import typer

from treadle.cli.options import Json, Namespace, Url

DAY_S = 24 * 3600
RETENTION_DAYS_MAX = 36_500
"""A century: more is a mistyped unit."""


class Sync(StrEnum):
    """How soon the dev server writes to the disk what it acknowledged."""

    always = "always"
    second = "1s"
    default = "2m"


def _metrics_port(variable: str) -> Any:
    return typer.Option(
        "--metrics-port",
        min=0,
        max=65535,
        envvar=variable,
        show_envvar=True,
        help="Serve metrics to Prometheus on this port; 0 is a free one.",
    )


MetricsHost = Annotated[
    str,
    typer.Option(
        "--metrics-host",
        metavar="ADDRESS",
        envvar="TREADLE_METRICS_HOST",
        help="Address the metrics are served on.",
    ),
]
AppFile = Annotated[
    str, typer.Argument(metavar="APP", help="app.py, or package.module; both also with :name.")
]


def dev(
    app: AppFile,
    port: Annotated[
        int | None,
        typer.Option(
            "--port", min=1, max=65535, help="Of the NATS server; 4222, or a free one if taken."
        ),
    ] = None,
    sync: Annotated[
        Sync, typer.Option("--sync", help="How soon acknowledged writes are on the disk.")
    ] = Sync.second,
    http_port: Annotated[
        int | None,
        typer.Option(
            "--http-port", min=0, max=65535, help="Run a gateway too: treadle http; 0 is any port."
        ),
    ] = None,
    json: Json = False,
) -> int:
    """Run server, engine and the worker of APP; restart the worker when its code changes.

    Everything is kept in .treadle/, and goes on where it was at the next start. Other commands
    find this server by themselves, in the same directory or in one below it.
    """
    from treadle.cli.dev import run_dev

    return run_dev(app, port=port, sync=sync.value, http_port=http_port, as_json=json)


def engine(
    name: Annotated[str, typer.Option("--name", metavar="NAME", help="For logs.")] = "",
    partitions: Annotated[
        int, typer.Option("--partitions", min=0, help="Of a new namespace; 0 keeps what is there.")
    ] = 0,
    replicas: Annotated[
        int, typer.Option("--replicas", min=1, max=5, help="Copies of each stream it creates.")
    ] = 1,
    retention_days: Annotated[
        float,
        typer.Option(
            "--retention-days",
            min=0,
            max=RETENTION_DAYS_MAX,
            envvar="TREADLE_RETENTION_DAYS",
            show_envvar=True,
            help="How long a run is kept after its end; 0 is without end.",
        ),
    ] = 30,
    output_days: Annotated[
        float | None,
        typer.Option(
            "--output-days",
            min=0.01,
            help="How long what runs say is kept; 7 in a new namespace, else as it is.",
        ),
    ] = None,
    metrics_port: Annotated[int | None, _metrics_port("TREADLE_METRICS_PORT")] = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Run an engine; any number may run, none is a leader."""
    from treadle.cli.meters import Endpoint
    from treadle.cli.serving import Kept, serve_engine

    metrics = Endpoint(metrics_port, metrics_host)
    kept = Kept(
        runs_s=retention_days * DAY_S,
        output_s=None if output_days is None else output_days * DAY_S,
    )
    return serve_engine(url, namespace, name, partitions, replicas, kept, metrics, as_json=json)


def http(
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="To listen on; 0 is a free one.")
    ] = 8099,
    host: Annotated[
        str, typer.Option("--host", metavar="ADDRESS", help="To listen on; all: 0.0.0.0.")
    ] = "127.0.0.1",
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Run a gateway for webhooks and HTTP triggers; any number may run (docs/http.md)."""
    from treadle.cli.serving import serve_http

    return serve_http(url, namespace, host, port, as_json=json)


def worker(
    app: AppFile,
    no_register: Annotated[
        bool,
        typer.Option(
            "--no-register",
            envvar="TREADLE_WORKER_NO_REGISTER",
            show_envvar=True,
            help="Leave the registered versions as they are.",
        ),
    ] = False,
    metrics_port: Annotated[int | None, _metrics_port("TREADLE_WORKER_METRICS_PORT")] = None,
    metrics_host: MetricsHost = "127.0.0.1",
    json: Json = False,
    url: Url = None,
    namespace: Namespace = None,
) -> int:
    """Register the workflows of APP and run its worker."""
    from treadle.cli.meters import Endpoint
    from treadle.cli.serving import serve_worker

    metrics = Endpoint(metrics_port, metrics_host)
    return serve_worker(app, url, namespace, metrics, registers=not no_register, as_json=json)
