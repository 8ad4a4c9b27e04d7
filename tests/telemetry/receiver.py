"""A collector of a test: it takes OTLP over HTTP, and holds what comes to the rules of a trace."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Protocol

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)


@dataclass(frozen=True)
class Seen:
    """A span as it arrived."""

    trace_id: str
    span_id: str
    parent_id: str
    name: str
    start_ns: int
    end_ns: int
    attributes: dict[str, Any] = field(hash=False)
    is_error: bool
    links: tuple[tuple[str, str, str], ...]
    """Trace, span and relation of each."""


class Collector:
    """What has arrived, in order."""

    def __init__(self) -> None:
        self.spans: list[Seen] = []
        self.bodies: list[bytes] = []
        self.is_refusing = False
        self.refused = 0
        self.endpoint = ""

    def take(self, body: bytes) -> None:
        self.bodies.append(body)
        request = ExportTraceServiceRequest.FromString(body)
        for resource in request.resource_spans:
            for scope in resource.scope_spans:
                self.spans.extend(_seen(span) for span in scope.spans)

    # ---------------------------------------------------------------- questions

    @property
    def distinct(self) -> list[Seen]:
        """Each span once. What is sent again has to be the same in everything."""
        found: dict[tuple[str, str], Seen] = {}
        for span in self.spans:
            known = found.setdefault((span.trace_id, span.span_id), span)
            assert known == span, f"one id, two spans: {known} {span}"
        return list(found.values())

    def of_run(self, run: str) -> list[Seen]:
        return [span for span in self.distinct if span.attributes.get("treadle.run.id") == run]

    def has_ended(self, run: str) -> bool:
        """True when the root of the run's trace has arrived."""
        return any(span.name.startswith("invoke_workflow ") for span in self.of_run(run))

    def tree(self, run: str) -> dict[str, Any]:
        """Return the run's spans as nested names, after a look that they are a tree."""
        spans = self.of_run(run)
        roots = [span for span in spans if not span.parent_id]
        first = next(span for span in roots if span.name.startswith("invoke_workflow "))
        known = {(span.trace_id, span.span_id) for span in spans}
        for span in spans:
            assert not span.parent_id or (span.trace_id, span.parent_id) in known, f"orphan {span}"
            assert span.start_ns <= span.end_ns, span
        for trace_id, count in Counter(span.trace_id for span in roots).items():
            assert count == 1, f"trace {trace_id} has {count} roots"
        return {first.name: _below(first, spans)}


def _below(parent: Seen, spans: list[Seen]) -> dict[str, Any]:
    children = [
        span
        for span in spans
        if (span.trace_id, span.parent_id) == (parent.trace_id, parent.span_id)
    ]
    found: dict[str, Any] = {}
    for span in sorted(children, key=lambda span: (span.start_ns, span.end_ns)):
        name = span.name
        while name in found:
            name += "'"
        found[name] = _below(span, spans)
    return found


def _seen(span: Any) -> Seen:
    return Seen(
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        name=span.name,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        attributes={each.key: _value(each.value) for each in span.attributes},
        is_error=span.status.code == 2,
        links=tuple(
            (
                link.trace_id.hex(),
                link.span_id.hex(),
                next((_value(each.value) for each in link.attributes), ""),
            )
            for link in span.links
        ),
    )


def _value(value: Any) -> Any:
    return getattr(value, value.WhichOneof("value"))


class Taking(Protocol):
    """What takes the requests of an exporter."""

    is_refusing: bool
    refused: int
    endpoint: str

    def take(self, body: bytes) -> None:
        """Take a request."""
        ...


@contextmanager
def serving(taken: Taking, path: str, answer: bytes) -> Iterator[None]:
    """Let it take what is posted to a free port of this machine, or refuse it with a 400."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            if taken.is_refusing:
                taken.refused += 1
            else:
                taken.take(body)
            self.send_response(400 if taken.is_refusing else 200)
            self.send_header("Content-Type", "application/x-protobuf")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, format: str, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    taken.endpoint = f"http://127.0.0.1:{server.server_address[1]}{path}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def collector() -> Iterator[Collector]:
    """Run a collector of traces."""
    taken = Collector()
    with serving(taken, "/v1/traces", ExportTraceServiceResponse().SerializeToString()):
        yield taken
