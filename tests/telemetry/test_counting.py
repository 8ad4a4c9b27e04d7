"""What counts, and that it counts once. Method: the pure folds, fed with messages as stored."""

from __future__ import annotations

from collections import Counter
from typing import Any

import msgspec
import pytest
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader

from treadle.engine.core.plan import Plan
from treadle.engine.telemetry.executions import Executions
from treadle.engine.telemetry.instruments import VALUES_MAX, Instruments, Point
from treadle.engine.telemetry.standing import Standing
from treadle.sdk import Workflow
from treadle.sdk.messages import (
    Failure,
    StepCompleted,
    StepContinued,
    StepFailed,
    TaskLost,
)
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing.span import SpanPart

S = 1_000_000


@pytest.fixture
def plan() -> Plan:
    workflow: Workflow[Any] = Workflow("report")
    workflow.task("fetch", "fetch-page")
    workflow.agent_loop("think", "llm", max_iterations=9, after=["fetch"])
    return Plan(workflow.build(), "hash")


def of(points: list[Point], instrument: metrics.Instrument) -> list[Point]:
    return [point for point in points if point.instrument is instrument]


def place(token: int, *, attempt: int = 1, iteration: int = 0) -> dict[str, Any]:
    at_us = 10 * S * token
    return {
        "step": "think",
        "type": "llm",
        "token": token,
        "attempt": attempt,
        "iteration": iteration,
        "queued_us": at_us - 3 * S,
        "taken_us": at_us - 2 * S,
    }


def test_an_execution_counts_with_its_wait_its_duration_and_its_outcome(plan: Plan) -> None:
    run = Executions(plan)
    points = run.event(StepContinued(**place(5), head=5), 50 * S)
    (wait,) = of(points, metrics.TASK_WAIT)
    assert (wait.value, wait.attributes["treadle.task.type"]) == (1, "llm")
    (execution,) = of(points, metrics.TASK_DURATION)
    assert execution.value == 2
    assert execution.attributes == {
        "treadle.workflow.name": "report",
        "treadle.step.name": "think",
        "treadle.task.type": "llm",
        "treadle.outcome": "ok",
    }


def test_a_failed_execution_and_its_repetition_are_an_error_and_a_retry(plan: Plan) -> None:
    run = Executions(plan)
    failed = StepFailed(**place(5), head=5, failure=Failure("RateLimited"))
    (error,) = of(run.event(failed, 50 * S), metrics.TASK_DURATION)
    assert error.attributes["treadle.outcome"] == "error"
    assert error.attributes["error.type"] == "RateLimited"
    points = run.event(StepCompleted(**place(6, attempt=2), head=6), 60 * S)
    (retry,) = of(points, metrics.TASK_RETRIES)
    assert retry.attributes["error.type"] == "RateLimited"


def test_a_lost_execution_counts_once_whoever_reports_it_and_its_zombie_not_at_all(
    plan: Plan,
) -> None:
    run = Executions(plan)
    lost = TaskLost(**{**place(5), "taken_us": 0})
    assert len(of(run.event(lost, 50 * S), metrics.TASK_LOST)) == 1
    assert run.event(lost, 51 * S) == []
    assert run.event(StepCompleted(**place(5), head=5), 52 * S) == []
    points = run.event(StepCompleted(**place(6, attempt=2), head=6), 60 * S)
    assert of(points, metrics.TASK_RETRIES) == [], "a loss is no failure"


def test_tokens_of_a_call_count_once_though_two_attempts_tell_of_it(plan: Plan) -> None:
    run = Executions(plan)

    def call(number: int) -> SpanPart:
        attributes: dict[str, Any] = {
            "gen_ai.operation.name": "chat",
            "gen_ai.provider.name": "anthropic",
            "gen_ai.request.model": "m",
            "gen_ai.response.model": "m-1",
            "gen_ai.usage.input_tokens": 100 + number,
            "gen_ai.usage.output_tokens": 7,
        }
        return SpanPart(number, "chat m", S, 3 * S, attributes)

    tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "look"}
    first = StepFailed(**place(5), head=5, failure=Failure("Broken"), parts=(call(0),))
    parts = (call(0), call(1), SpanPart(2, "execute_tool look", S, 2 * S, tool, "timeout"))
    second = StepContinued(**place(6, attempt=2), head=6, parts=parts)
    points = run.event(first, 50 * S) + run.event(second, 60 * S)
    spent: Counter[str] = Counter()
    for point in of(points, metrics.TOKEN_USAGE):
        spent[point.attributes["gen_ai.token.type"]] += int(point.value)
    assert spent == {"input": 201, "output": 14}
    assert [point.value for point in of(points, metrics.OPERATION_DURATION)] == [2, 2]
    (tool_call,) = of(points, metrics.TOOL_DURATION)
    assert tool_call.attributes == {"gen_ai.tool.name": "look", "error.type": "timeout"}


def document(status: Any, **more: Any) -> RunDocument:
    base: dict[str, Any] = {"workflow": "report", "definition": "hash", "requested_ms": 10_000}
    return RunDocument(**{"run": "r", "status": status, **base, **more})


def values(points: list[Point]) -> list[tuple[str, float]]:
    return [(point.instrument.name, point.value) for point in points]


def test_a_run_and_its_steps_count_once_at_their_ends(plan: Plan) -> None:
    standing = Standing(0)
    begun = document("running", steps={"fetch": StepEntry("active", 0, 11_000)})
    assert values(standing.document(begun, plan, 11 * S)) == [("treadle.run.started", 1)]
    assert standing.document(begun, plan, 11 * S) == []
    steps = {
        "fetch": StepEntry("completed", 1, 11_000, 12_000),
        "think": StepEntry("failed", 4, 12_000, 16_000, failure=Failure("max_iterations")),
    }
    failure = Failure("max_iterations")
    ended = document("failed", steps=steps, ended_ms=16_000, failure=failure)
    points = standing.document(ended, plan, 16 * S)
    assert values(points) == [
        ("treadle.step.duration", 1),
        ("treadle.step.duration", 4),
        ("treadle.loop.iterations", 4),
        ("treadle.run.completed", 1),
        ("treadle.run.duration", 6),
    ]
    assert points[2].attributes["treadle.stop_reason"] == "max_iterations"
    assert points[3].attributes["error.type"] == "max_iterations"
    assert standing.document(ended, plan, 17 * S) == []


def test_what_an_earlier_reader_has_counted_does_not_count_again(plan: Plan) -> None:
    standing = Standing(since_ms=14_000)
    steps = {"fetch": StepEntry("completed", 1, 11_000, 12_000)}
    running = document("running", steps=steps)
    standing.document(running, plan, 12 * S, is_old=True)
    unseen = msgspec.structs.replace(running, run="unseen", status="completed", ended_ms=15_000)
    assert [name for name, _ in values(standing.document(unseen, plan, 15 * S))] == [
        "treadle.run.completed",
        "treadle.run.duration",
    ]
    before = msgspec.structs.replace(running, run="before", status="completed", ended_ms=13_000)
    assert standing.document(before, plan, 15 * S) == []
    ended = msgspec.structs.replace(running, status="completed", ended_ms=15_000)
    assert ("treadle.run.completed", 1) in values(standing.document(ended, plan, 15 * S))


def test_gauges_show_the_runs_that_have_not_ended_and_how_long_nothing_happened(
    plan: Plan,
) -> None:
    standing = Standing(0)
    steps = {"fetch": StepEntry("active", 0, 11_000)}
    for number in range(3):
        run = document("running", run=f"r{number}", steps=steps)
        standing.document(run, plan, 20 * S)
    standing.document(document("parked", run="r1"), plan, 21 * S)
    ended = document("completed", run="r2", steps=steps, ended_ms=22_000)
    standing.document(ended, plan, 22 * S)
    standing.moved("r0", 30 * S)
    shown = {
        (point.instrument.name, *sorted(point.attributes.values())): point.value
        for point in standing.gauges(95 * S)
    }
    assert shown == {
        ("treadle.run.active", "report", "running"): 1,
        ("treadle.run.active", "parked", "report"): 1,
        ("treadle.task.active", "fetch-page"): 1,
        ("treadle.run.unmoved", "report"): 65,
    }
    assert all("r0" not in point.attributes.values() for point in standing.gauges(95 * S))


def test_names_that_handlers_and_models_choose_are_bounded(plan: Plan) -> None:
    reader = InMemoryMetricReader()
    provider = MeterProvider(metric_readers=[reader], shutdown_on_exit=False)
    instruments = Instruments(provider.get_meter("treadle"))
    for number in range(VALUES_MAX + 50):
        error = {"error.type": f"Error{number}" + "x" * 500}
        instruments.record([Point(metrics.TASK_RETRIES, 1, error)])
    data: Any = reader.get_metrics_data()
    (metric,) = data.resource_metrics[0].scope_metrics[0].metrics
    seen = {point.attributes["error.type"]: point.value for point in metric.data.data_points}
    assert len(seen) == VALUES_MAX + 1 and seen[metrics.OTHER] == 50
    assert max(map(len, seen)) <= 80
