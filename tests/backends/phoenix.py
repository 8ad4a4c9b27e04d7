"""arize-phoenix: its server, its REST interface for spans and its GraphQL for sums."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.backends.backend import Shown, Total
from tests.backends.serving import Serving, free_port, is_alone

PROJECT = "treadle"
PAGE = 1_000
"""The most spans that one answer holds."""
# Nothing that it would do beside taking and showing spans.
OFF = {
    "PHOENIX_TELEMETRY_ENABLED": "false",
    "PHOENIX_ALLOW_EXTERNAL_RESOURCES": "false",
    "PHOENIX_DISABLE_AGENT_ASSISTANT": "true",
    "PHOENIX_AGENTS_DISABLE_BASH": "true",
    "PHOENIX_AGENTS_DISABLE_WEB_ACCESS": "true",
    "PHOENIX_AGENTS_DISABLE_GITHUB": "true",
    "PHOENIX_ENABLE_MCP_SERVER": "false",
    "PHOENIX_ALLOWED_SANDBOX_PROVIDERS": "NONE",
}
TOTAL = """query ($trace: String!) {
  getTraceByOtelId(traceId: $trace) {
    session { sessionId }
    rootSpan { cumulativeTokenCountPrompt cumulativeTokenCountCompletion }
  }
}"""
PAGE_OF = """query ($span: String!, $project: String!) {
  getSpanByOtelId(spanId: $span) { id }
  getProjectByName(name: $project) { id }
}"""


class Phoenix:
    """A server that runs."""

    name = "phoenix"

    def __init__(self, executable: Path, directory: Path) -> None:
        # It listens for gRPC on all interfaces, and there is no switch for that.
        assert is_alone(), "Phoenix would listen on this machine's network: use `make backends`."
        port, grpc = free_port(), free_port()
        env = {
            "PHOENIX_WORKING_DIR": str(directory),
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(port),
            "PHOENIX_GRPC_PORT": str(grpc),
            **OFF,
        }
        self._serving = Serving([str(executable), "serve"], env, directory, port)
        self.stop = self._serving.stop

    def wait(self) -> None:
        self._serving.wait("/healthz")

    def variables(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._serving.url,
            "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={PROJECT}",
        }

    def spans(self, trace_id: str) -> list[Shown]:
        found: list[Shown] = []
        query = {"trace_id": trace_id, "limit": str(PAGE)}
        while True:
            path = f"/v1/projects/{PROJECT}/spans?{urlencode(query)}"
            answer = self._serving.ask(path) or {"data": [], "next_cursor": None}
            found += [_shown(span) for span in answer["data"]]
            if answer["next_cursor"] is None:
                return found
            query["cursor"] = answer["next_cursor"]

    def total(self, trace_id: str) -> Total:
        trace = self._ask(TOTAL, trace=trace_id)["getTraceByOtelId"]
        root, session = trace["rootSpan"], trace["session"]
        return Total(
            int(root["cumulativeTokenCountPrompt"] or 0),
            int(root["cumulativeTokenCountCompletion"] or 0),
            session["sessionId"] if session else "",
        )

    def page(self, span: Shown) -> str:
        found = self._ask(PAGE_OF, span=span.span_id, project=PROJECT)
        project, node = found["getProjectByName"]["id"], found["getSpanByOtelId"]["id"]
        where = f"/projects/{project}/traces/{span.trace_id}?selectedSpanNodeId={node}"
        return self._serving.url + where

    def _ask(self, query: str, **variables: str) -> Any:
        answer = self._serving.ask("/graphql", {"query": query, "variables": variables})
        assert "errors" not in answer, answer
        return answer["data"]


def _shown(span: Any) -> Shown:
    attributes = span["attributes"]
    return Shown(
        trace_id=span["context"]["trace_id"],
        span_id=span["context"]["span_id"],
        parent_id=span["parent_id"] or "",
        name=span["name"],
        kind=span["span_kind"],
        start_us=_us(span["start_time"]),
        end_us=_us(span["end_time"]),
        is_error=span["status_code"] == "ERROR",
        links=None,
        content=(_content(attributes, "input"), _content(attributes, "output")),
    )


def _content(attributes: Any, side: str) -> str:
    """Return the messages of a model's call, a tool's parameters, or the value of what else."""
    inside = (f"llm.{side}_messages.", *(["tool.parameters."] if side == "input" else []))
    parts = {name: value for name, value in attributes.items() if name.startswith(inside)}
    return json.dumps(parts) if parts else str(attributes.get(f"{side}.value", ""))


def _us(text: str) -> int:
    epoch = datetime.datetime.fromtimestamp(0, datetime.UTC)
    return (datetime.datetime.fromisoformat(text) - epoch) // datetime.timedelta(microseconds=1)
