"""MLflow: its server and the REST interface of its tracking store."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

from tests.backends.backend import Shown, Total
from tests.backends.serving import Serving, free_port

EXPERIMENT = "0"
"""The one that every server has."""
OFF = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "DO_NOT_TRACK": "true",
    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
}
KINDS = {"CHAT_MODEL": "LLM"}
ERROR = "STATUS_CODE_ERROR"


class MLflow:
    """A server that runs."""

    name = "mlflow"

    def __init__(self, executable: Path, directory: Path) -> None:
        port = free_port()
        command = [str(executable), "server", "--host", "127.0.0.1", "--port", str(port)]
        command += ["--workers", "1", "--backend-store-uri", f"sqlite:///{directory}/mlflow.db"]
        command += ["--artifacts-destination", str(directory / "artifacts")]
        # By this name its pages do not open with an assistant over them.
        self._site = f"http://mlflow.localhost:{port}"
        command += ["--allowed-hosts", f"127.0.0.1:{port},mlflow.localhost:{port}"]
        command += ["--cors-allowed-origins", self._site]
        self._serving = Serving(command, OFF, directory, port)
        self.stop = self._serving.stop

    def wait(self) -> None:
        self._serving.wait("/health")

    def variables(self) -> dict[str, str]:
        return {
            "OTEL_EXPORTER_OTLP_ENDPOINT": self._serving.url,
            "OTEL_EXPORTER_OTLP_HEADERS": f"x-mlflow-experiment-id={EXPERIMENT}",
        }

    def spans(self, trace_id: str) -> list[Shown]:
        # This answer has the spans as they are stored; the one below has no links.
        path = f"/ajax-api/3.0/mlflow/get-trace-artifact?request_id=tr-{trace_id}"
        answer = self._serving.ask(path) or {"spans": []}
        return [_shown(span) for span in answer["spans"]]

    def total(self, trace_id: str) -> Total:
        info = self._serving.ask(f"/api/3.0/mlflow/traces/tr-{trace_id}")["trace"]["trace_info"]
        assert info["state"] in ("OK", "ERROR"), info
        more = info.get("trace_metadata", {})
        usage = json.loads(more.get("mlflow.trace.tokenUsage", "{}"))
        return Total(
            usage.get("input_tokens", 0),
            usage.get("output_tokens", 0),
            more.get("mlflow.trace.session", ""),
        )

    def page(self, span: Shown) -> str:
        where = f"/#/experiments/{EXPERIMENT}/traces?selectedEvaluationId=tr-{span.trace_id}"
        return self._site + where


def _shown(span: Any) -> Shown:
    attributes = span["attributes"]
    kind = json.loads(attributes["mlflow.spanType"])
    return Shown(
        trace_id=_hex(span["trace_id"]),
        span_id=_hex(span["span_id"]),
        parent_id=_hex(span["parent_span_id"] or ""),
        name=span["name"],
        kind=KINDS.get(kind, kind),
        start_us=span["start_time_unix_nano"] // 1_000,
        end_us=span["end_time_unix_nano"] // 1_000,
        is_error=span["status"]["code"] == ERROR,
        links=frozenset(_place(link) for link in span["links"]),
        content=(attributes.get("mlflow.spanInputs", ""), attributes.get("mlflow.spanOutputs", "")),
    )


def _place(link: Any) -> tuple[str, str]:
    return link["trace_id"].removeprefix("tr-"), link["span_id"]


def _hex(text: str) -> str:
    return base64.b64decode(text).hex()
