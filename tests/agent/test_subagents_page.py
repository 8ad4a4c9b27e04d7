"""The page about sub-agents runs as one program, against a strict fake of the Messages API."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.pages import program_of

from treadle.worker.agent import Agent
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "subagents.md"
FENCE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def play(request: RecordedRequest) -> Turn:
    """Hand on, work, and say what came of it."""
    offered, results = request.tool_names, list(request.tool_results.values())
    if results and "reader" in offered:
        return turn(text("Both pages are about looms."))
    if results:
        return turn(text(str(results[0])))
    if "reader" in offered:
        calls = (tool_use("reader", {"task": f"Page {n}."}, f"page-{n}") for n in (1, 2))
        return turn(*calls)
    if "clerk" in offered:
        return turn(tool_use("clerk", {"task": "Two copies."}, "hand-on"))
    if "order" in offered:
        return turn(tool_use("order", {"pages": 2}, "order-2"))
    return turn(tool_use("read_page", {"number": 1}))


async def program() -> None:
    names = await program_of("subagents.md")
    for agent in [each for each in names.values() if isinstance(each, Agent)]:
        await agent.close()


def test_the_page_runs_as_one_program(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAnthropic(play) as fake:
        for name, value in {**fake.env, "MODEL": "anthropic:claude-test"}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        asyncio.run(program())
    assert [request.error for request in fake.requests if request.status != 200] == []


def test_no_python_on_the_page_is_left_unrun() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(FENCE.findall(page)) == page.count("```python") == 3
