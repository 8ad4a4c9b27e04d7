"""The page about the plan workflow: its Python runs as one program, its table names what there is.

Method: as for the page about agents; the strict fake works badly before its first review.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from tests.agent import test_docs

from treadle.sdk.settings import Settings
from treadle.worker.agent.plan.prompts import PLACES
from treadle.worker.agent.testing import FakeAnthropic, RecordedRequest, Turn, text, tool_use, turn

PAGE = Path(__file__).resolve().parents[3] / "docs" / "plan.md"


def play(request: RecordedRequest) -> Turn:
    """Play the four agents; the reviewer says what the tests say."""
    role = str(request.body["system"])
    goal = str(request.messages[0]["content"][0]["text"])
    first = len(request.messages) == 1
    if "You change" in role and first:
        value = "sum(prices)" if "<review>" in goal else "max(prices)"
        content = f"def total(prices):\n    return {value}\n"
        return turn(tool_use("write_file", {"path": "shop.py", "content": content}))
    if "You review" in role:
        if first:
            return turn(tool_use("run_tests", {}))
        word = "DONE" if "passed" in str(request.tool_results) else "NEEDS_FIX"
        return turn(text(f'```json\n{{"verdict": "{word}", "findings": []}}\n```'))
    return turn(text("total() divides by the number of prices."))


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
        names = asyncio.run(asyncio.wait_for(test_docs.program("plan.md", settings), 50))
    assert names["result"]["reviews"] == 2
    assert [request.error for request in fake.requests if request.status != 200] == []


def test_no_python_on_the_page_is_left_unrun() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert len(test_docs.FENCE.findall(page)) == page.count("```python") > 2


def test_the_page_names_every_place_of_every_template() -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]*\| (.*\{\{.*) \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: tuple(re.findall(r"\w+", places)) for name, places in rows} == PLACES
