"""The page about approvals: its Python runs as one program.

Method: each block in order, against a strict fake of the Messages API; the one that connects a
client finds a real server, an engine and the page's worker.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.agent.test_docs import FENCE, execute

from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

PAGE = Path(__file__).resolve().parents[2] / "docs" / "approvals.md"


def play(request: RecordedRequest) -> Turn:
    if any(message["role"] == "assistant" for message in request.messages):
        return turn(text("Done."))
    return turn(tool_use("issue_refund", {"order_id": "O-104", "cents": 4_900}))


async def program(settings: Settings) -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    page = PAGE.read_text(encoding="utf-8")
    for found in FENCE.finditer(page):
        line = page.count("\n", 0, found.start(1))
        if "Client.connect" in found[1]:
            place = {"url": settings.url, "namespace": settings.namespace}
            async with local(names["worker"], workflows=[names["workflow"]], **place):
                await execute(found[1], line, names)
        else:
            await execute(found[1], line, names)
    await names["cashier"].close()
    return names


def test_the_page_runs_as_one_program(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeAnthropic(play) as fake:
        for name, value in {
            **fake.env,
            "MODEL": "anthropic:claude-test",
            "NO_PROXY": "127.0.0.1",
            "TREADLE_NATS_URL": settings.url,
            "TREADLE_NAMESPACE": settings.namespace,
        }.items():
            monkeypatch.setenv(name, value)
        names = asyncio.run(asyncio.wait_for(program(settings), 50))
    assert names["PAID"] == [2_500]
    assert [request.error for request in fake.requests if request.status != 200] == []


def test_no_python_on_the_page_is_left_unrun() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(FENCE.findall(page)) == page.count("```python") >= 4
