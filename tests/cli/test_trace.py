"""``treadle run trace`` and the page about tracing: the tree without a backend, the link to one."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from opentelemetry import trace
from tests.cli.conftest import Run
from tests.telemetry.test_trees import a_worker, report

from treadle.cli import exits, output
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.sdk.tracing import names

PAGE = Path(__file__).resolve().parents[2] / "docs" / "tracing.md"


def finished(settings: Settings, **given: Any) -> None:
    """Let a run end."""

    async def story() -> None:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(a_worker(), **place) as client:
            run = await client.start(report(), given, id="run")
            await asyncio.wait_for(run.result(), 30)

    asyncio.run(story())


def test_a_finished_run_is_drawn_as_a_tree_with_times_and_errors(
    treadle: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(settings, last=3, fails_at=1)
    out = treadle("run", "trace", "run").out
    shape = [
        re.sub(r"(?<=[\w)])\s{2,}.*", "", line)
        for line in out.splitlines()
        if "queue wait" not in line
    ]
    assert re.fullmatch(r"trace [0-9a-f]{32}", shape[0])
    assert shape[1:] == [
        "invoke_workflow report",
        "├─ step fetch",
        "│  └─ attempt 1",
        "└─ invoke_agent think",
        "   ├─ iteration 0",
        "   ├─ iteration 1",
        "   ├─ wait retry",
        "   ├─ iteration 1 (attempt 2)",
        "   ├─ iteration 2",
        "   └─ iteration 3",
    ]
    assert "RuntimeError: no luck" in out and re.search(r"wait retry +\d+ms", out)
    with monkeypatch.context() as patch:
        patch.setattr(output, "WIDTH_OFF_TERMINAL", 60)
        narrow = treadle("run", "trace", "run").out.splitlines()
    assert all(len(line) <= 60 for line in narrow if "no luck" not in line)
    assert not any("▇" in line for line in narrow)
    data = json.loads(treadle("run", "trace", "run", "--json").out)
    assert data["trace_id"] in shape[0] and not data["open"]
    assert len({span["span_id"] for span in data["spans"]}) == len(data["spans"])


def test_of_a_long_loop_the_first_and_the_last_iterations_are_shown(
    treadle: Run, settings: Settings
) -> None:
    finished(settings, last=20)
    out = treadle("run", "trace", "run", "--limit", "4").out
    shown = re.findall(r"iteration (\d+)", out)
    assert shown == ["0", "1", "19", "20"] and "… 17 more" in out


def test_a_run_that_waits_shows_what_is_open(treadle: Run, settings: Settings) -> None:
    async def story() -> None:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(a_worker(), **place) as client:
            run = await client.start(report(), {"last": 2, "waits_at": 1}, id="run")
            async with asyncio.timeout(20):
                while (await run.get()).status != "parked":
                    await asyncio.sleep(0.02)
            found = await client.trace("run")
            assert {span.name for span in found.open} == {
                "invoke_workflow report",
                "invoke_agent think",
            }

    asyncio.run(story())
    assert re.search(r"invoke_agent think +[\d.a-z]+…", treadle("run", "trace", "run").out)


def test_the_link_is_made_from_the_backends_address(
    treadle: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    finished(settings, last=0)
    monkeypatch.delenv("TREADLE_TRACE_URL", raising=False)
    refused = treadle("run", "trace", "run", "--web", code=exits.USAGE)
    assert "TREADLE_TRACE_URL" in refused.err
    monkeypatch.setenv("TREADLE_TRACE_URL", "http://127.0.0.1:9/t/{trace_id}?from=cli")
    out = treadle("run", "trace", "run", "--web").out
    assert re.fullmatch(r"http://127\.0\.0\.1:9/t/[0-9a-f]{32}\?from=cli\n", out)


def test_the_page_runs_and_what_its_handler_traces_is_below_the_execution(
    settings: Settings,
) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    page: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), page)

    async def story() -> None:
        from treadle.sdk import Workflow

        workflow: Workflow[Any] = Workflow("page")
        workflow.task("fetch", "fetch")
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(page["worker"], **place) as client:
            run = await client.start(workflow, "a", id="run")
            assert await asyncio.wait_for(run.result(), 20) == "A"

    asyncio.run(story())
    assert trace.get_tracer("app") is not None


def test_the_page_names_spans_attributes_and_variables_that_there_are() -> None:
    page = PAGE.read_text()
    known = {value for value in vars(names).values() if isinstance(value, str)}
    for attribute in re.findall(r"`(treadle\.[a-z_.]+)`", page):
        assert any(each.startswith(attribute.rstrip("*")) for each in known), attribute
    root = PAGE.parents[1]
    code = "".join(path.read_text() for path in (root / "sdk").rglob("*.py"))
    code += "".join(path.read_text() for path in (root / "engine").rglob("*.py"))
    for variable in set(re.findall(r"\b(?:OTEL|TREADLE)_[A-Z_]+\b", page)):
        assert variable in code or variable.startswith("OTEL_"), variable
