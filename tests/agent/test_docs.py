"""The pages about agents: the Python of each runs as one program, and tables name what there is.

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
from treadle.worker.agent.events import EventName
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn
from treadle.worker.agent.testing.script import Responder

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "agents.md"
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


def search(request: RecordedRequest) -> Turn:
    """Search with other words each time, for ever; be done when no tool may run."""
    if request.body.get("tool_choice") == {"type": "none"}:
        return turn(text("Nothing was found."))
    return turn(tool_use("search", {"query": f"words {request.index}"}))


def read(request: RecordedRequest) -> Turn:
    """Read a page each turn, then be done; summarise when asked."""
    if not request.tool_names:
        return turn(text("## Goal\nRead the report\n## Done\nPages were read\n"))
    if request.index >= 14:
        return turn(text("It comes to 7."))
    return turn(tool_use("read_page", {"number": request.index}))


def refund(request: RecordedRequest) -> Turn:
    """Pay at once, and be done with what people make of it."""
    if any(message["role"] == "assistant" for message in request.messages):
        return turn(text("Done."))
    return turn(tool_use("issue_refund", {"order_id": "O-104", "cents": 4_900}))


PAGES: dict[str, Responder] = {
    "agents.md": play,
    "approvals.md": refund,
    "tools.md": play,
    "loops-and-guards.md": search,
    "compaction.md": read,
    "testing-agents.md": play,
}


async def execute(source: str, line: int, names: dict[str, Any]) -> None:
    """Run one block; what it raises names the line of the page."""
    file = names["__file__"]
    flags = ast.PyCF_ALLOW_TOP_LEVEL_AWAIT
    # What this file imports from __future__ is not what the page does.
    code = compile("\n" * line + source, file, "exec", flags=flags, dont_inherit=True)
    returned = eval(code, names)
    if inspect.isawaitable(returned):
        await returned


async def program(name: str, settings: Settings) -> dict[str, Any]:
    """Run the page; return the names it has defined."""
    names: dict[str, Any] = {"__name__": "page", "__file__": str(DOCS / name)}
    page = (DOCS / name).read_text(encoding="utf-8")
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


def played(
    name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], FakeAnthropic]:
    """Run a page with its model; return the names it has defined, and what the model was asked."""
    with FakeAnthropic(PAGES[name]) as fake:
        given = {
            **fake.env,
            "MODEL": "anthropic:claude-test",
            "NO_PROXY": "127.0.0.1",
            "TREADLE_NATS_URL": settings.url,
            "TREADLE_NAMESPACE": settings.namespace,
        }
        for variable, value in given.items():
            monkeypatch.setenv(variable, value)
        names = asyncio.run(asyncio.wait_for(program(name, settings), 50))
    assert [request.error for request in fake.requests if request.status != 200] == []
    return names, fake


@pytest.mark.slow
def test_the_page_about_agents_runs_as_one_program(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names, fake = played("agents.md", settings, monkeypatch)
    assert names["PAID"] == {"refund-O-104": 4_900}
    said = str([request.messages for request in fake.requests])
    assert "The carrier has confirmed the date." in said
    assert "And is that usual?" in said


@pytest.mark.parametrize("name", [name for name in PAGES if name != "agents.md"])
def test_each_further_page_runs_as_one_program(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    played(name, settings, monkeypatch)


@pytest.mark.parametrize("name", PAGES)
def test_no_python_on_a_page_is_left_unrun(name: str) -> None:
    page = (DOCS / name).read_text(encoding="utf-8")
    assert len(FENCE.findall(page)) == page.count("```python") > 0


def test_every_event_is_in_the_table_of_events_and_is_emitted_somewhere() -> None:
    page = (DOCS / "loops-and-guards.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in page.splitlines() if line.startswith("| `agent")]
    listed = [name for row in rows for name in re.findall(r"`([\w.]+)`", row)]
    assert sorted(listed) == sorted(get_args(EventName))
    folder = DOCS.parent / "worker" / "treadle" / "worker" / "agent"
    sources = [path.read_text() for path in folder.rglob("*.py")]
    emitted = {name for each in sources for name in re.findall(r'emit\(\s*"([\w.]+)"', each)}
    # The deltas are given out by the emitter itself.
    assert set(listed) - emitted == {"agent.message.delta"}


def test_the_tables_name_every_option_bound_hook_and_stop_reason() -> None:
    named = set(re.findall(r"`(\w+)`", PAGE.read_text(encoding="utf-8")))
    options = set(inspect.signature(get_overloads(tool)[1]).parameters)
    bounds = set(Budget.__struct_fields__)
    hooks = {field.name for field in dataclasses.fields(Hooks)}
    assert (options | bounds | hooks | set(get_args(StopReason))) - named == set()
