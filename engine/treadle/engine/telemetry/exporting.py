"""Spans as data to OpenTelemetry's exporter over OTLP; needs the extra ``otel``.

The exporter is this process's own: it is built from the standard variables, and a provider that a
user has set is neither asked nor replaced.

    OTEL_EXPORTER_OTLP_ENDPOINT          a base URL, or OTEL_EXPORTER_OTLP_TRACES_ENDPOINT in full
    OTEL_EXPORTER_OTLP_HEADERS           and the other variables of the exporter
    OTEL_SERVICE_NAME                    ``treadle`` by default; OTEL_RESOURCE_ATTRIBUTES besides
    OTEL_TRACES_EXPORTER=none            no export; so does OTEL_SDK_DISABLED=true
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING

from opentelemetry.trace import Link, SpanContext, TraceFlags, TraceState
from opentelemetry.trace import SpanKind as OtelKind

from treadle.sdk.errors import UserError
from treadle.sdk.tracing import names
from treadle.sdk.tracing.span import Span, SpanKind, SpanLink

if TYPE_CHECKING:
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.export import SpanExporter

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
SERVICE = "treadle"
_KINDS: dict[SpanKind, OtelKind] = {
    "internal": OtelKind.INTERNAL,
    "client": OtelKind.CLIENT,
    "consumer": OtelKind.CONSUMER,
}


def is_wanted(env: Mapping[str, str] = os.environ) -> bool:
    """True when the environment names a collector and does not switch the export off."""
    if env.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    if env.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return False
    return any(env.get(name, "").strip() for name in ENDPOINTS)


class OtlpExport:
    """Sends spans to the collector of the environment; raises ``UserError`` without the extra."""

    def __init__(self) -> None:
        if find_spec("opentelemetry.exporter") is None or find_spec("opentelemetry.sdk") is None:
            raise UserError(
                "a collector is named by OTEL_EXPORTER_OTLP_ENDPOINT, but what sends to it is not "
                "installed. Install treadle[otel], or unset the variable."
            )
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        named = os.environ.get("OTEL_SERVICE_NAME", "").strip() or SERVICE
        self._exporter: SpanExporter = OTLPSpanExporter()
        self._resource = Resource.create({"service.name": named})

    def send(self, spans: Sequence[Span]) -> bool:
        """Send the spans and return whether the collector has them. It blocks."""
        from opentelemetry.sdk.trace.export import SpanExportResult

        readable = [to_readable(span, self._resource) for span in spans]
        return self._exporter.export(readable) is SpanExportResult.SUCCESS

    def close(self) -> None:
        """Give the connection back."""
        self._exporter.shutdown()


def to_readable(span: Span, resource: Resource) -> ReadableSpan:
    """Return a span as the exporter takes it."""
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope
    from opentelemetry.trace import Status, StatusCode

    attributes = dict(span.attributes)
    status = Status(StatusCode.UNSET)
    if span.error:
        attributes[names.ERROR_TYPE] = span.error
        status = Status(StatusCode.ERROR, span.error_text or span.error)
    return ReadableSpan(
        name=span.name,
        context=_context(span.trace_id, span.span_id),
        parent=_context(span.trace_id, span.parent_id) if span.parent_id else None,
        resource=resource,
        attributes=attributes,
        links=[_link(link) for link in span.links],
        kind=_KINDS[span.kind],
        status=status,
        start_time=span.start_us * 1_000,
        end_time=span.end_us * 1_000,
        instrumentation_scope=InstrumentationScope(names.SCOPE),
    )


def _link(link: SpanLink) -> Link:
    state = TraceState.from_header([link.trace_state]) if link.trace_state else None
    context = _context(link.trace_id, link.span_id, state)
    return Link(context, {names.LINK: link.relation})


def _context(trace_id: str, span_id: str, state: TraceState | None = None) -> SpanContext:
    sampled = TraceFlags(TraceFlags.SAMPLED)
    return SpanContext(int(trace_id, 16), int(span_id, 16), True, sampled, state)
