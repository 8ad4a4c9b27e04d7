"""The page about planners: its workflow runs, in memory and on a real server, as the page says.

Method: the block is executed as it stands; the YAML is read as the same step.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.engine.conftest import Play
from tests.engine.stand import Stand

from treadle.sdk.definition import PlannerStep
from treadle.sdk.document import parse_definition
from treadle.sdk.testing import simulate

PAGE = Path(__file__).resolve().parents[2] / "docs" / "planner.md"


def _block(fence: str) -> str:
    fenced = rf"^```{fence}\n(.*?)^```$"
    (block,) = re.findall(fenced, PAGE.read_text(), re.MULTILINE | re.DOTALL)
    return str(block)


@pytest.fixture
def page() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(_block("python"), str(PAGE), "exec"), names)
    return names


def test_the_page_runs(page: dict[str, Any]) -> None:
    run = asyncio.run(simulate(page["workflow"], "tea or coffee", page["worker"]))
    assert run.result() == "choose coffee"
    assert run.step("plan--compare").output == "coffee"


def test_an_engine_does_the_same(play: Play, page: dict[str, Any]) -> None:
    async def story(stand: Stand) -> None:
        await stand.engine()
        stand.worker(page["worker"])
        run = await stand.client.start(page["workflow"], "tea or coffee")
        assert await run.result(timeout_s=15) == "choose coffee"

    play(story)


def test_the_yaml_is_the_planner_of_the_page(page: dict[str, Any]) -> None:
    text = f"name: research\nsteps:\n{_block('yaml')}"
    (step,) = parse_definition(text, "yaml").steps
    own = page["workflow"].build().step("plan")
    assert isinstance(step, PlannerStep)
    assert step == own
