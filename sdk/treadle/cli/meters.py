"""Where the metrics of an engine or a worker go, which the command and the environment say.

    OTEL_EXPORTER_OTLP_ENDPOINT          a base URL, or OTEL_EXPORTER_OTLP_METRICS_ENDPOINT in full
    OTEL_METRIC_EXPORT_INTERVAL          milliseconds between exports; 60,000
    OTEL_METRICS_EXPORTER=none           no export; so does OTEL_SDK_DISABLED=true
    --metrics-port                       an endpoint that Prometheus reads; treadle[prometheus]

A provider that a user's file has set is used as it is: nothing is configured then.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, NamedTuple

from treadle.sdk.errors import UserError, clause

if TYPE_CHECKING:
    from opentelemetry.metrics import Meter
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import MetricReader

ENDPOINTS = ("OTEL_EXPORTER_OTLP_METRICS_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
OTLP = "opentelemetry.exporter.otlp.proto.http"
"""The module that sends to a collector; it comes with the extra ``otel``."""
CLOSE_S = 2.0
"""What a last export may take of a process's end."""

_log = logging.getLogger("treadle.telemetry")


class Endpoint(NamedTuple):
    """Where Prometheus reads; no port is no endpoint, 0 is a free one."""

    port: int | None = None
    host: str = "127.0.0.1"


@contextmanager
def metering(endpoint: Endpoint, *, role: str) -> Generator[Meter | None]:
    """Send metrics while the block runs; return what makes them, None if nobody wants any.

    Raises ``UserError`` if the port cannot be listened on, or what it needs is not installed. Only
    a worker starts without what sends to a collector: the engine tells of its runs, and does.
    """
    from opentelemetry import metrics

    if _is_set_by_user():
        if endpoint.port is not None:
            _log.warning(
                "%s.metrics-port-unused port=%d: the file sets a MeterProvider of its own, which "
                "is used as it is. Let that one serve the port.",
                role,
                endpoint.port,
            )
        yield metrics.get_meter("treadle")
        return
    readers, closers = _readers(endpoint, role)
    if not readers:
        yield None
        return
    provider = _provider(readers)
    metrics.set_meter_provider(provider)
    try:
        yield provider.get_meter("treadle")
    finally:
        for close in (*closers, provider.shutdown):
            # A collector that is away would hold the end of the process.
            last = threading.Thread(target=close, daemon=True)
            last.start()
            last.join(CLOSE_S)


def _named_by(env: Mapping[str, str]) -> str:
    """Return the variable that names a collector to export to, or ''."""
    if env.get("OTEL_METRICS_EXPORTER", "").strip().lower() == "none" or _is_disabled(env):
        return ""
    return next((name for name in ENDPOINTS if env.get(name, "").strip()), "")


def _is_disabled(env: Mapping[str, str]) -> bool:
    return env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"


def _is_set_by_user() -> bool:
    from opentelemetry import metrics

    # What the API returns as long as nobody has set one; it has no public name.
    return type(metrics.get_meter_provider()).__name__ != "_ProxyMeterProvider"


def _readers(
    endpoint: Endpoint, role: str
) -> tuple[list[MetricReader], list[Callable[[], object]]]:
    readers: list[MetricReader] = []
    closers: list[Callable[[], object]] = []
    if endpoint.port is not None and not _is_disabled(os.environ):
        reader, close = _prometheus(endpoint.port, endpoint.host, role)
        readers.append(reader)
        closers.append(close)
    if variable := _named_by(os.environ):
        if role == "worker" and not _is_installed(OTLP):
            _log.warning(
                "worker.metrics-not-exported: %s names a collector, but what sends to it is not "
                "installed here, so this worker's own metrics are not exported; traces, and what "
                "engines count, do not need it. Install treadle[otel], or set "
                "OTEL_METRICS_EXPORTER=none.",
                variable,
            )
            return readers, closers
        _require(OTLP, "otel", f"{variable} names a collector", f"unset {variable}")
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader

        readers.append(PeriodicExportingMetricReader(OTLPMetricExporter()))
    return readers, closers


def _prometheus(port: int, host: str, role: str) -> tuple[MetricReader, Callable[[], object]]:
    why = f"--metrics-port is {port}"
    _require("opentelemetry.exporter.prometheus", "prometheus", why, "leave the port out")
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from prometheus_client import start_http_server

    try:
        server, _ = start_http_server(port, host)
    except OSError as exc:
        raise UserError(
            f"metrics cannot be served on {host}:{port}: {clause(exc)}. "
            "Another process has the port, or "
            "this machine has no such address; name another by --metrics-port, --metrics-host."
        ) from exc
    _log.info("%s.metrics-served url=http://%s:%d/metrics", role, host, server.server_port)

    def close() -> None:
        server.shutdown()
        server.server_close()

    return PrometheusMetricReader(), close


def _provider(readers: list[MetricReader]) -> MeterProvider:
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.resources import Resource

    named = os.environ.get("OTEL_SERVICE_NAME", "").strip() or "treadle"
    own = Resource({"service.instance.id": f"{socket.gethostname()}-{os.getpid()}"})
    resource = own.merge(Resource.create({"service.name": named}))
    return MeterProvider(metric_readers=readers, resource=resource, shutdown_on_exit=False)


def _is_installed(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def _require(module: str, extra: str, why: str, otherwise: str) -> None:
    if not _is_installed(module):
        raise UserError(
            f"{why}, but what serves it is not installed. Install treadle[{extra}], or {otherwise}."
        )
