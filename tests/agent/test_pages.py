"""The pages about MCP and pydantic-ai: the Python of each runs as one program.

Method: each block fenced as ``python run`` is executed in order, one that names a file is written
there; a block that connects a client finds a real server, an engine and the page's workers."""

from __future__ import annotations

import ast
import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from treadle.sdk import Workflow
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent.mcp import server as servers
from treadle.worker.agent.testing import FakeAnthropic, tool_use, turn

pytestmark = pytest.mark.timeout(180)
DOCS = Path(__file__).resolve().parents[2] / "docs"
FENCE = re.compile(r"^```python (run|file=\S+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


async def run_page(name: str, settings: Settings) -> dict[str, Any]:
    """Run the page in the working directory; return the names it has defined."""
    names: dict[str, Any] = {"__name__": "page"}
    page = (DOCS / name).read_text(encoding="utf-8")
    for found in FENCE.finditer(page):
        line = page.count("\n", 0, found.start(2))
        if found[1] != "run":
            Path(found[1].removeprefix("file=")).write_text(found[2])
        elif "Client.connect()" in found[2]:
            workers = [value for value in names.values() if isinstance(value, Worker)]
            workflows: list[Workflow[Any]] = [
                value for value in names.values() if isinstance(value, Workflow)
            ]
            place = {"url": settings.url, "namespace": settings.namespace}
            async with local(*workers, workflows=workflows, **place):
                await _execute(found[2], line, names)
        else:
            await _execute(found[2], line, names)
    return names


async def _execute(source: str, line: int, names: dict[str, Any]) -> None:
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    returned = eval(compile("\n" * line + source, "the page", "exec", flags=flags), names)
    if inspect.isawaitable(returned):
        await returned


@pytest.fixture
def place(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> pytest.MonkeyPatch:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    return monkeypatch


@pytest.mark.slow
def test_the_page_about_mcp_runs(settings: Settings, place: pytest.MonkeyPatch) -> None:
    # What the page leaves out: a busy machine takes longer than 10 s to start Python.
    place.setattr(servers.McpServer.__init__, "__kwdefaults__", _patient())
    with FakeAnthropic([turn(tool_use("shop__order", {"sku": "bike"}))]) as fake:
        for name, value in {**fake.env, "MODEL": "anthropic:claude-test"}.items():
            place.setenv(name, value)
        asyncio.run(run_page("mcp.md", settings))
        assert "shop__stock" in fake.requests[0].tool_names


def _patient() -> dict[str, Any]:
    return {**(servers.McpServer.__init__.__kwdefaults__ or {}), "init_timeout": 60.0}


@pytest.mark.slow
def test_the_page_about_pydantic_ai_runs(settings: Settings, place: pytest.MonkeyPatch) -> None:
    names = asyncio.run(run_page("pydantic-ai.md", settings))
    assert "two-opinions" in names["worker"].handlers


@pytest.mark.parametrize("name", ["mcp.md", "pydantic-ai.md"])
def test_no_python_on_a_page_is_left_unrun(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert len(FENCE.findall(page)) == page.count("```python") > 0


def test_the_table_names_every_option_of_a_server() -> None:
    named = set(re.findall(r"`(\w+)`", (DOCS / "mcp.md").read_text(encoding="utf-8")))
    options = set(inspect.signature(servers.McpServer).parameters) - {"name"}
    assert options - named == set()
