"""What a JSON log line carries, and that engine and worker lines name the run's own spans."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from treadle.cli import log_lines
from treadle.engine.runs import Runs
from treadle.sdk import Retry, Workflow
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.sdk.tracing import ids
from treadle.sdk.tracing import place as places
from treadle.sdk.tracing.place import Place
from treadle.worker import TaskContext, Worker

TRACE = "0af7651916cd43dd8448eb211c80319c"


def record(text: str, *args: object, name: str = "treadle.engine", **extra: Any) -> dict[str, Any]:
    logger = logging.getLogger(name)
    exc_info = extra.pop("exc_info", None)
    made = logger.makeRecord(name, logging.WARNING, "f.py", 1, text, args, exc_info, extra=extra)
    return log_lines.fields(made)


def test_a_line_has_its_time_level_logger_event_and_message() -> None:
    line = record("engine.sweep-failed %r; soon again", 7, count=3)
    assert line.pop("ts").endswith("+00:00")
    assert line == {
        "level": "warning",
        "logger": "treadle.engine",
        "event": "engine.sweep-failed",
        "msg": "engine.sweep-failed 7; soon again",
        "count": 3,
    }


@pytest.mark.parametrize(
    ("name", "text"),
    [("library", "a.b happened"), ("treadle.handler", "a.b happened"), ("treadle.bus", "Plain.")],
)
def test_what_is_no_event_of_ours_has_no_event(name: str, text: str) -> None:
    assert "event" not in record(text, name=name)


def test_an_engines_line_names_the_span_that_follows_from_the_runs_trace() -> None:
    run = Place("r1", "report", trace=f"{TRACE}-01")
    line = record("engine.handling-failed %s", {}, place=run)
    assert (line["run_id"], line["workflow"]) == ("r1", "report")
    assert (line["trace_id"], line["span_id"]) == (TRACE, ids.root_span(TRACE))
    assert "place" not in line and "step" not in line
    execution = run._replace(step="think", iteration=3, attempt=2)
    line = record("engine.task-lost %s", {}, place=execution)
    assert (line["step"], line["iteration"], line["attempt"]) == ("think", 3, 2)
    assert line["span_id"] == ids.attempt_span(TRACE, "think", 3, 2)
    assert "trace_id" not in record("engine.task-lost", place=Place("r1"))


def test_a_failure_has_its_type_and_traceback() -> None:
    try:
        raise ValueError("bad")
    except ValueError:
        line = record("worker.report-failed", exc_info=sys.exc_info())
    assert line["error.type"] == "ValueError"
    assert line["traceback"].endswith("ValueError: bad")
    assert record("x.y", error_type="RateLimited")["error.type"] == "RateLimited"


def test_what_a_handler_traces_is_the_narrower_span() -> None:
    token = places.enter(Place("r1", step="s", attempt=1, trace=f"{TRACE}-01"))
    own = SpanContext(0xABC, 0xDEF, is_remote=False, trace_flags=TraceFlags(1))
    try:
        with trace.use_span(NonRecordingSpan(own)):
            line = record("hello", name="library")
        assert (line["run_id"], line["span_id"]) == ("r1", f"{0xDEF:016x}")
        outside = record("hello", name="library")
        assert outside["span_id"] == ids.attempt_span(TRACE, "s", 0, 1)
    finally:
        places.leave(token)


def test_lines_of_worker_and_engine_about_a_run_have_its_trace(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[dict[str, Any]] = []

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(log_lines.fields(record))

    worker = Worker()

    @worker.handler("work")
    async def work(ctx: TaskContext[None]) -> str:
        ctx.logger.warning("on it", extra={"page": 7})
        if ctx.attempt == 1:
            raise RuntimeError("no luck")
        return "end"

    handle, stumbled = Runs.handle, [False]

    async def stumbling(runs: Runs, batch: Any) -> None:
        if not stumbled[0] and any(hasattr(pending.event, "failure") for pending in batch):
            stumbled[0] = True
            raise KeyError("a bug")
        await handle(runs, batch)

    monkeypatch.setattr(Runs, "handle", stumbling)
    workflow: Workflow[Any] = Workflow("flow")
    workflow.task("s", "work", retry=Retry(max_attempts=2, delay_s=0.01))

    async def story() -> None:
        where = {"url": settings.url, "namespace": settings.namespace}
        async with local(worker, workflows=[workflow], **where) as client:
            run = await client.start("flow", id="r1")
            assert await run.result() == "end"

    keep = Keep()
    logging.getLogger("treadle").addHandler(keep)
    try:
        asyncio.run(story())
    finally:
        logging.getLogger("treadle").removeHandler(keep)
    by = {line.get("event", line["msg"]): line for line in lines}
    own, failed = by["on it"], by["worker.attempt-failed"]
    about = ("run_id", "workflow", "step", "attempt", "trace_id", "span_id", "worker_id")
    assert [failed[key] for key in about[:3]] == ["r1", "flow", "s"]
    assert (failed["attempt"], failed["error.type"]) == (1, "RuntimeError")
    assert failed["span_id"] == ids.attempt_span(failed["trace_id"], "s", 0, 1)
    assert own["page"] == 7 and own["worker_id"] == failed["worker_id"]
    assert own["span_id"] == ids.attempt_span(failed["trace_id"], "s", 0, own["attempt"])
    engine = by["engine.handling-failed"]
    assert [engine[key] for key in about[:-1]] == [failed[key] for key in about[:-1]]
    assert engine["error.type"] == "KeyError"
