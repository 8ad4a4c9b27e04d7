"""Points to OpenTelemetry's instruments, with a bound on what their attributes can be.

Without an SDK behind the meter all of it does nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from opentelemetry.metrics import CallbackOptions, Counter, Histogram, Meter, Observation

from treadle.sdk.tracing import names
from treadle.sdk.tracing.metric_names import OF_ENGINES, OTHER, STOP_REASON, Instrument

VALUES_MAX = 100
"""Of one attribute whose values are not those of definitions."""
CHARS_MAX = 80
OPEN_ATTRIBUTES = (
    names.ERROR_TYPE,
    STOP_REASON,
    names.TOOL,
    names.AGENT,
    names.PROVIDER,
    names.REQUEST_MODEL,
    names.RESPONSE_MODEL,
)
"""Attributes whose values come from handlers and from models."""


class Point(NamedTuple):
    """One value of one instrument."""

    instrument: Instrument
    value: float
    attributes: dict[str, str]


class Instruments:
    """The instruments of an engine."""

    def __init__(self, meter: Meter) -> None:
        self._counters: dict[str, Counter] = {}
        self._histograms: dict[str, Histogram] = {}
        self._gauges: dict[str, list[Observation]] = {}
        self._seen: dict[str, set[str]] = {name: set() for name in OPEN_ATTRIBUTES}
        for each in OF_ENGINES:
            self._make(meter, each)

    def record(self, points: Iterable[Point]) -> None:
        """Count the points."""
        for instrument, value, attributes in points:
            attributes = self._bounded(attributes)
            if instrument.kind == "counter":
                self._counters[instrument.name].add(value, attributes)
            else:
                self._histograms[instrument.name].record(value, attributes)

    def observe(self, points: Sequence[Point]) -> None:
        """Let the gauges show these points, and no others."""
        shown: dict[str, list[Observation]] = {}
        for instrument, value, attributes in points:
            shown.setdefault(instrument.name, []).append(
                Observation(value, self._bounded(attributes))
            )
        self._gauges = shown

    def _make(self, meter: Meter, each: Instrument) -> None:
        match each.kind:
            case "counter":
                made = meter.create_counter(each.name, each.unit, each.description)
                self._counters[each.name] = made
            case "histogram":
                self._histograms[each.name] = meter.create_histogram(
                    each.name,
                    each.unit,
                    each.description,
                    explicit_bucket_boundaries_advisory=each.buckets,
                )
            case "gauge":
                meter.create_observable_gauge(
                    each.name, [self._callback(each.name)], each.unit, each.description
                )

    def _callback(self, name: str) -> Callable[[CallbackOptions], Iterable[Observation]]:
        def shown(options: CallbackOptions) -> Iterable[Observation]:
            del options
            return self._gauges.get(name, ())  # In the thread of whoever reads.

        return shown

    def _bounded(self, attributes: dict[str, str]) -> dict[str, str]:
        for name in OPEN_ATTRIBUTES:
            value = attributes.get(name)
            if value is None:
                continue
            value, seen = value[:CHARS_MAX], self._seen[name]
            if value not in seen and len(seen) >= VALUES_MAX:
                value = OTHER
            seen.add(value)
            attributes[name] = value
        return attributes
