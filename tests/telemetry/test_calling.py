"""What a start says of its trace, by the environment and the span it is made in."""

from __future__ import annotations

from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from treadle.engine.telemetry.exporting import is_wanted
from treadle.sdk.errors import UserError
from treadle.sdk.tracing import calling, ids


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OTEL_SDK_DISABLED", "OTEL_TRACES_SAMPLER", "OTEL_TRACES_SAMPLER_ARG"):
        monkeypatch.delenv(name, raising=False)


def is_sampled(origin: calling.Origin) -> bool:
    ref = ids.parse_ref(origin.ref)
    assert ref is not None
    return ref.is_sampled


def test_a_start_has_a_trace_unless_it_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    assert is_sampled(calling.origin(None))
    assert calling.origin("off") == calling.Origin()
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    assert calling.origin(None) == calling.Origin()
    assert is_sampled(calling.origin("link")), "asked for by name"


def test_what_is_no_mode_and_no_sampler_is_refused_with_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wrong: Any = "parent"
    with pytest.raises(UserError, match="link, join, off"):
        calling.origin(wrong)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "sometimes")
    with pytest.raises(UserError, match=r"OTEL_TRACES_SAMPLER is 'sometimes'.*traceidratio"):
        calling.origin(None)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "1.5")
    with pytest.raises(UserError, match="from 0 to 1"):
        calling.origin(None)


def test_the_ratio_is_that_of_the_traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.25")
    sampled = sum(is_sampled(calling.origin(None)) for _ in range(2_000))
    assert 350 < sampled < 650
    for argument, expected in (("0", False), ("1", True)):
        monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", argument)
        assert is_sampled(calling.origin(None)) is expected


@pytest.mark.parametrize("sampler", ["always_off", "parentbased_always_off"])
def test_a_parent_decides_only_where_the_sampler_is_based_on_it(
    monkeypatch: pytest.MonkeyPatch, sampler: str
) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    tracer = TracerProvider(sampler=ALWAYS_ON).get_tracer("test")
    with tracer.start_as_current_span("caller"):
        assert is_sampled(calling.origin(None)) is sampler.startswith("parentbased")
    assert not is_sampled(calling.origin(None))


def test_the_callers_span_links_to_the_run_and_the_run_to_it() -> None:
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with provider.get_tracer("test").start_as_current_span("caller") as span:
        origin = calling.origin(None)
        calling.link_to_run(origin)
        context = span.get_span_context()
    ref = ids.parse_ref(origin.ref)
    assert ref is not None
    caller_trace = trace.format_trace_id(context.trace_id)
    assert origin.caller == f"00-{caller_trace}-{trace.format_span_id(context.span_id)}-01"
    (finished,) = exporter.get_finished_spans()
    (link,) = finished.links
    assert trace.format_trace_id(link.context.trace_id) == ref.trace_id != caller_trace
    assert trace.format_span_id(link.context.span_id) == ids.root_span(ref.trace_id)


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:4318"}, True),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:4318/v1/traces"}, True),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_TRACES_EXPORTER": "none"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://h", "OTEL_SDK_DISABLED": "true"}, False),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": " "}, False),
    ],
)
def test_an_engine_exports_where_a_collector_is_named(env: dict[str, str], expected: bool) -> None:
    assert is_wanted(env) is expected
