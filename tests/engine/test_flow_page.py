"""The page about flow control: its Python runs, and its numbers are those of the code.
Method: the block is executed as it stands, against a real server, an engine and a worker."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.pages import block_of, served

from treadle.sdk.flow import AGEING_MS, PRIORITY_MAX
from treadle.sdk.limits import CONCURRENCY_MAX, FLOW_LIMITS_MAX, LOSSES_MAX, PLACES_MAX
from treadle.sdk.settings import Settings
from treadle.sdk.testing import simulate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "flow-control.md").read_text()


@pytest.fixture
def page() -> dict[str, Any]:
    return block_of("flow-control.md")


def test_the_page_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, page: dict[str, Any]
) -> None:
    told = served(page, settings, monkeypatch)
    assert told == ["sent the report of big", "sent the report of small"]


def test_a_simulation_of_it_comes_to_the_same(page: dict[str, Any]) -> None:
    given = {"customer": "big", "urgency": 3}
    run = asyncio.run(simulate(page["workflow"], given, page["worker"]))
    assert run.result() == "sent the report of big"


def test_the_numbers_of_the_page_are_those_of_the_code() -> None:
    assert f"-{PRIORITY_MAX} to {PRIORITY_MAX}, and **ten seconds" in PAGE
    assert AGEING_MS == 10_000
    assert FLOW_LIMITS_MAX == 10 and "A step may have ten" in PAGE
    assert f"value of an expression over `input`: 1 to {PLACES_MAX}." in PAGE
    assert f"a limit has 1 to {CONCURRENCY_MAX:,} slots" in PAGE
    assert LOSSES_MAX == 10 and "one loss of the\n  ten" in PAGE
