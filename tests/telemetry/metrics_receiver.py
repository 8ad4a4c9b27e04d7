"""A collector of a test that takes metrics over OTLP, and keeps the newest value of each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)
from tests.telemetry.receiver import serving


class Metrics:
    """What has arrived: by metric, its points by their attributes."""

    def __init__(self) -> None:
        self.points: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
        self.resources: list[dict[str, str]] = []
        self.bodies: list[bytes] = []
        self.is_refusing = False
        self.refused = 0
        self.endpoint = ""

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        request = ExportMetricsServiceRequest.FromString(body)
        for resource in request.resource_metrics:
            self.resources.append(_attributes(resource.resource.attributes))
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    self._metric(metric)

    def _metric(self, metric: Any) -> None:
        data = getattr(metric, metric.WhichOneof("data"))
        known = self.points.setdefault(metric.name, {})
        for point in data.data_points:
            is_histogram = metric.WhichOneof("data") == "histogram"
            value = point.count if is_histogram else getattr(point, point.WhichOneof("value"))
            known[tuple(sorted(_attributes(point.attributes).items()))] = value

    def total(self, metric: str, **wanted: str) -> float:
        """Return the sum over the points whose attributes hold these, by their last word."""
        return sum(
            value
            for attributes, value in self.points.get(metric, {}).items()
            if all(any(k.endswith(w) and v == x for k, v in attributes) for w, x in wanted.items())
        )


def _attributes(found: Any) -> dict[str, str]:
    return {each.key: str(getattr(each.value, each.value.WhichOneof("value"))) for each in found}


@contextmanager
def metrics_receiver() -> Iterator[Metrics]:
    """Run a collector of metrics."""
    taken = Metrics()
    with serving(taken, "/v1/metrics", ExportMetricsServiceResponse().SerializeToString()):
        yield taken
