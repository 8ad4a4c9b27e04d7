"""The page about sub-workflows: its Python runs, and what it names is there.

Method: the block is executed as it stands on a real server; its table and limits are compared.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand
from tests.pages import block_of, served

from treadle.sdk.children import CHILD_CANCELLED, CHILD_DEPTH_MAX, CHILD_FAILED
from treadle.sdk.definition import SubWorkflowStep
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.settings import Settings
from treadle.sdk.testing import simulate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "sub-workflows.md").read_text()


@pytest.fixture
def page() -> dict[str, Any]:
    return block_of("sub-workflows.md")


def test_the_page_runs(
    page: dict[str, Any], settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    result, children = served(page, settings, monkeypatch)
    assert result == "invoice of 30"
    assert sorted(children) == ["invoice", "survey"]


def test_the_page_is_played_in_memory(page: dict[str, Any]) -> None:
    others = [page["invoice"], page["survey"]]
    run = asyncio.run(simulate(page["order"], {"total": 7}, page["worker"], workflows=others))
    assert run.child("bill").result() == "invoice of 7"
    assert run.child("survey").reason == "timeout"


def test_the_budget_of_the_page_bounds_a_run_and_its_children_together() -> None:
    page = block_of("sub-workflows.md", "python budget")
    play = simulate(page["research"], {}, page["worker"], workflows=[page["dig"]])
    result = asyncio.run(play).result()
    assert sorted(result) == ["left", "right", "think"]
    assert 12 <= sum(result.values()) <= 11 + 2 * 3


@pytest.mark.parametrize("count", [0, 1, 3])
def test_the_children_of_the_page_are_started_one_for_each_item(count: int) -> None:
    page = block_of("sub-workflows.md", "python fan")
    items = [{"to": f"c{n}"} for n in range(count)]
    play = simulate(page["orders"], items, page["worker"], workflows=[page["ship"]])
    assert asyncio.run(play).result() == [item["to"] for item in items]


def test_an_engine_gives_each_planned_child_the_input_of_its_plan(play: Play) -> None:
    page = block_of("sub-workflows.md", "python fan")

    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(page["worker"])
        await stand.client.register(page["ship"])
        run = await stand.client.start(page["orders"], [{"to": "c0"}, {"to": "c1"}])
        assert await run.result(timeout_s=15) == ["c0", "c1"]
        assert [child.workflow for child in await run.children()] == ["ship", "ship"]

    play(story)


def test_the_page_names_fields_reasons_and_limits_that_there_are() -> None:
    rows = set(re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE))
    own = {"workflow", "detached", "timeout_s", "retry"}
    assert {f"{row}_s" if row == "timeout" else row for row in rows} == own
    assert own <= set(SubWorkflowStep.__struct_fields__)
    assert all(f"`{reason}`" in PAGE for reason in (CHILD_FAILED, CHILD_CANCELLED))
    assert f"more than {CHILD_DEPTH_MAX} levels" in PAGE
    assert f"more than {PAYLOAD_BYTES_MAX // 1024} KiB" in PAGE
