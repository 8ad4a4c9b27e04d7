"""The page about agents: its Python runs as one program, and its tables name what there is.

Method: each block fenced as ``python run`` is executed in order, against a strict fake of the
Messages API; one that connects a client finds a real server, an engine and the page's workers.
"""

from __future__ import annotations

import ast
import asyncio
import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_overloads

import pytest

from treadle.sdk import Workflow
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent import Agent, Budget, Hooks, tool
from treadle.worker.agent.core.stops import StopReason
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "agents.md"
FENCE = re.compile(r"^```python run\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def play(request: RecordedRequest) -> Turn:
    """Read the order, pay if that is possible, and give the result."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    offered = request.tool_names
    if answers == 0 and "read_order" in offered:
        return turn(tool_use("read_order", {"order_id": "O-104"}))
    if answers == 1 and "issue_refund" in offered:
        return turn(tool_use("issue_refund", {"order_id": "O-104", "cents": 4_900}))
    if "final_output" in offered:
        return turn(
            tool_use("final_output", {"sufficient": True, "why": "It is three weeks late."})
        )
    return turn(text("Done."))


async def execute(source: str, line: int, names: dict[str, Any]) -> None:
    """Run one block; what it raises names the line of the page."""
    code = compile("\n" * line + source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    returned = eval(code, names)
    if inspect.isawaitable(returned):
        await returned


async def program(settings: Settings) -> dict[str, Any]:
    """Run the page; return the names it has defined."""
    names: dict[str, Any] = {"__name__": "page"}
    page = PAGE.read_text(encoding="utf-8")
    agents: list[Agent[Any]] = []
    for found in FENCE.finditer(page):
        line = page.count("\n", 0, found.start(1))
        if "Client.connect" in found[1]:
            workers = [value for value in names.values() if isinstance(value, Worker)]
            workflows: list[Workflow[Any]] = [
                value for value in names.values() if isinstance(value, Workflow)
            ]
            place = {"url": settings.url, "namespace": settings.namespace}
            async with local(*workers, workflows=workflows, **place):
                await execute(found[1], line, names)
        else:
            await execute(found[1], line, names)
        agents += [each for each in names.values() if isinstance(each, Agent)]
    for agent in agents:
        await agent.close()
    return names


def test_the_page_runs_as_one_program(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAnthropic(play) as fake:
        given = {
            **fake.env,
            "MODEL": "anthropic:claude-test",
            "NO_PROXY": "127.0.0.1",
            "TREADLE_NATS_URL": settings.url,
            "TREADLE_NAMESPACE": settings.namespace,
        }
        for name, value in given.items():
            monkeypatch.setenv(name, value)
        names = asyncio.run(asyncio.wait_for(program(settings), 50))
    assert names["PAID"] == {"refund-O-104": 4_900}
    said = str([request.messages for request in fake.requests])
    assert "The carrier has confirmed the date." in said
    assert "And is that usual?" in said
    assert [request.error for request in fake.requests if request.status != 200] == []


def test_no_python_on_the_page_is_left_unrun() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(FENCE.findall(page)) == page.count("```python") > 10


def test_the_tables_name_every_option_bound_hook_and_stop_reason() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    options = set(inspect.signature(get_overloads(tool)[1]).parameters)
    bounds = set(Budget.__struct_fields__)
    hooks = {field.name for field in dataclasses.fields(Hooks)}
    assert (options | bounds | hooks | set(get_args(StopReason))) - named == set()
