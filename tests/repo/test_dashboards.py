"""The dashboard and the alert rules ask for metrics and labels that the code emits. Method: every
instrument is written once and read as Prometheus would; PromQL is searched for names."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing import names

LABELS = {
    each.replace(".", "_")
    for each in (
        *(names.WORKFLOW, names.RUN_STATUS, names.STEP, names.STEP_KIND, names.STEP_STATUS),
        *(names.TASK_TYPE, names.ERROR_TYPE, names.OPERATION, names.PROVIDER, names.AGENT),
        *(names.REQUEST_MODEL, names.RESPONSE_MODEL, names.TOOL),
        *(metrics.OUTCOME, metrics.STOP_REASON, metrics.REASON, metrics.TOKEN_TYPE, metrics.LIMIT),
    )
}
OF_PROMETHEUS = {"instance", "le"}
WORDS = {
    *("and", "on", "or", "by", "sum", "max", "count", "rate", "increase", "absent", "vector"),
    *("histogram_quantile", "__rate_interval"),
}


@pytest.fixture(scope="module")
def series() -> set[str]:
    """The names that Prometheus reads."""
    registry = CollectorRegistry()
    reader = PrometheusMetricReader(registry=registry)
    meter = MeterProvider(metric_readers=[reader], shutdown_on_exit=False).get_meter("treadle")
    for each in (*metrics.OF_ENGINES, *metrics.OF_WORKERS):
        match each.kind:
            case "counter":
                meter.create_counter(each.name, each.unit).add(1)
            case "histogram":
                meter.create_histogram(each.name, each.unit).record(1)
            case "gauge":
                meter.create_gauge(each.name, each.unit).set(1)
    text = generate_latest(registry).decode()
    return set(re.findall(r"^((?:treadle|gen_ai)\w+?)(?:\{.*\})? \S+$", text, re.M))


def _rules(root: Path) -> list[dict[str, Any]]:
    text = (root / "deploy" / "prometheus" / "alerts.yml").read_text("utf-8")
    return [rule for group in yaml.safe_load(text)["groups"] for rule in group["rules"]]


def _dashboard(root: Path) -> dict[str, Any]:
    return json.loads((root / "deploy" / "grafana" / "treadle.json").read_text("utf-8"))


def _expressions(root: Path) -> Iterator[str]:
    for rule in _rules(root):
        yield rule["expr"]
    for panel in _dashboard(root)["panels"]:
        for target in panel.get("targets", []):
            yield target["expr"]


def _words(expression: str) -> set[str]:
    """The names in an expression, without texts, ranges and numbers."""
    bare = re.sub(r'"[^"]*"|\[[^]]*\]', " ", expression)
    return set(re.findall(r"[A-Za-z_]\w*", bare))


def test_every_name_in_an_expression_is_one_that_is_emitted(root: Path, series: set[str]) -> None:
    known = series | LABELS | OF_PROMETHEUS | WORDS
    found = list(_expressions(root))
    assert len(found) > 30
    for expression in found:
        assert _words(expression) <= known, (_words(expression) - known, expression)
        assert expression.count("(") == expression.count(")")


def test_every_metric_is_on_the_dashboard(root: Path, series: set[str]) -> None:
    asked: set[str] = set()
    for panel in _dashboard(root)["panels"]:
        for target in panel.get("targets", []):
            asked |= _words(target["expr"])
    shown = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in asked & series}
    emitted = {re.sub(r"_(bucket|count|sum|created|total)$", "", name) for name in series}
    assert shown == emitted


def test_labels_in_the_texts_of_alerts_and_legends_are_kept_by_their_expressions(
    root: Path,
) -> None:
    texts = [(rule["expr"], " ".join(rule["annotations"].values())) for rule in _rules(root)] + [
        (target["expr"], re.sub(r"\{\{(\w+)\}\}", r"$labels.\1", target["legendFormat"]))
        for panel in _dashboard(root)["panels"]
        for target in panel.get("targets", [])
    ]
    for expression, text in texts:
        for label in re.findall(r"\$labels\.(\w+)", text):
            kept = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", expression))))
            assert label in kept or (label == "instance" and " by " not in expression), text


def test_every_alert_says_what_it_means_and_what_to_do(root: Path) -> None:
    alerts = [rule["alert"] for rule in _rules(root)]
    assert len(alerts) == len(set(alerts))
    wanted = ("EventLag", "NoWorker", "RunsStuck", "DeadLetters", "WorkersLost", "SlotsFull")
    assert {f"Treadle{each}" for each in wanted} <= set(alerts)
    for rule in _rules(root):
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert set(rule["annotations"]) == {"summary", "description"}
        assert re.fullmatch(r"\d+m", rule.get("for", "0m"))


def test_the_panels_of_the_dashboard_do_not_overlap(root: Path) -> None:
    taken: set[tuple[int, int]] = set()
    ids: list[int] = []
    for panel in _dashboard(root)["panels"]:
        ids.append(panel["id"])
        box = panel["gridPos"]
        assert box["x"] + box["w"] <= 24
        cells = {
            (x, y)
            for x in range(box["x"], box["x"] + box["w"])
            for y in range(box["y"], box["y"] + box["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
    assert len(ids) == len(set(ids))


def test_prometheus_reads_the_rules_that_are_there(root: Path) -> None:
    folder = root / "deploy" / "prometheus"
    config = yaml.safe_load((folder / "prometheus.yml").read_text("utf-8"))
    for name in config["rule_files"]:
        assert (folder / name).is_file()


def test_the_page_about_metrics_names_each_with_its_attributes(root: Path) -> None:
    page = (root / "docs" / "metrics.md").read_text("utf-8")
    rows = re.findall(r"^\| `([\w.]+)` \| (\w+) \|", page, re.M)
    every = (*metrics.OF_ENGINES, *metrics.OF_WORKERS)
    assert rows == [(each.name, each.kind) for each in every]
    for label in re.findall(r"`((?:treadle|gen_ai|error)\.[\w.]+)`", page):
        assert label.replace(".", "_") in LABELS or label in {each.name for each in every}, label
