"""What sends spans to a collector, over OTLP; needs the extra ``otel``.

It is this process's own, built from the standard variables; a provider that a user has set is
neither asked nor replaced.

    OTEL_EXPORTER_OTLP_ENDPOINT          a base URL, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT in full
    OTEL_EXPORTER_OTLP_HEADERS           and the other variables of the exporter
    OTEL_SERVICE_NAME                    ``treadle`` by default; OTEL_RESOURCE_ATTRIBUTES besides
    OTEL_TRACES_EXPORTER=none            no export; so does OTEL_SDK_DISABLED=true
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from treadle.sdk.errors import UserError
from treadle.sdk.tracing.span import Span, Value

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVICE = "treadle"


def is_wanted(env: Mapping[str, str] = os.environ) -> bool:
    """True when the environment names a collector and does not switch the export off."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if env.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return any(env.get(name, "").strip() for name in ENDPOINTS)


def check_extra() -> None:
    """Raise ``UserError`` unless what sends to a collector is installed."""
    if find_spec("opentelemetry.exporter") is None or find_spec("opentelemetry.sdk") is None:
        raise UserError(
            "a collector is named by OTEL_EXPORTER_OTLP_ENDPOINT, but what sends to it is not "
            "installed. Install treadle[otel], or unset the variable."
        )


class NotExported(Exception):
    """The collector did not take spans; the text says which collector, and why."""


class OtlpExport:
    """Sends spans to the collector of the environment; raises ``UserError`` without the extra."""

    def __init__(self) -> None:
        check_extra()
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        named = os.environ.get("OTEL_SERVICE_NAME", "").strip() or SERVICE
        resource = Resource.create({"service.name": named})
        self._resource: dict[str, Value] = {
            name: value
            for name, value in resource.attributes.items()
            if isinstance(value, str | bool | int | float)
        }
        self._exporter = OTLPSpanExporter()
        # Its client takes a request that is encoded already: retries, headers, TLS and
        # compression are the library's.
        client: Any = self._exporter._client  # pyright: ignore[reportPrivateUsage]
        self._post: Callable[[bytes], Any] = client.export
        endpoint: str = self._exporter._endpoint  # pyright: ignore[reportPrivateUsage]
        self._address = _shown(endpoint)

    def send(self, spans: Sequence[Span]) -> None:
        """Send the spans; raise ``NotExported`` unless the collector has them. It blocks."""
        from treadle.engine.telemetry.encoding import encode

        result = self._post(encode(spans, self._resource))
        if not result.success:
            raise NotExported(f"{self._address}: {_why(result)}")

    def close(self) -> None:
        """Give the connection back."""
        self._exporter.shutdown()  # type: ignore[no-untyped-call]


def _shown(endpoint: str) -> str:
    """Return the address without what may be secret in it."""
    parts = urlsplit(endpoint)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], query=""))


def _why(result: Any) -> str:
    """Return what a collector answered, or what the connection came to."""
    if result.status_code is not None:
        return f"it answered {result.status_code} {result.reason or ''}".rstrip()
    error = result.error
    # What the libraries make of a deadline that passes between two tries is no error of a network.
    if not isinstance(error, OSError):
        return "no answer in time"
    # The libraries wrap what the system says three times over.
    while (inner := error.__cause__ or error.__context__) is not None:
        error = inner
    return f"{type(error).__name__}: {error}"
