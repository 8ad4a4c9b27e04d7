"""The page about events: its Python runs, and what it says of names, subjects and times is so.

Method: the block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from tests.pages import block_of, served

from treadle.engine.topology import EXTERNAL_MAX_AGE_S
from treadle.engine.waiter_log import SKEW_MS
from treadle.sdk.document import parse_definition
from treadle.sdk.matching import NAME_CHARS_MAX, NAME_PARTS_MAX
from treadle.sdk.settings import Settings
from treadle.sdk.subjects import Subjects
from treadle.sdk.testing import Event, simulate

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "events.md").read_text()


def _program() -> dict[str, Any]:
    return block_of("events.md")


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = _program()
    results = served(names, settings, monkeypatch)
    assert results == ["order 104: 1040 cents", "order 105: 1050 cents"]


def test_the_step_of_the_page_without_its_event_is_skipped_over() -> None:
    names = _program()
    late = Event("order.paid", {"order": 104, "cents": 1}, after_s=14 * 24 * 3600 + 1)
    run = asyncio.run(simulate(names["workflow"], {"order": 104}, names["worker"], events=[late]))
    assert (run.status, run.step("ship").status) == ("completed", "skipped")


def test_the_event_of_the_page_cancels_its_run_and_no_other() -> None:
    workflow = block_of("events.md", "python cancels")["cancellable"]
    for order, status in ((104, "cancelled"), (105, "running")):
        event = Event("order.cancelled", {"order": 104})
        run = asyncio.run(simulate(workflow, {"order": order}, events=[event]))
        assert run.status == status


def test_the_page_says_what_is_so() -> None:
    (step,) = re.findall(r"`(\{kind: event.*?\})`", PAGE)
    definition = parse_definition(f"name: order\nsteps:\n  - {step}\n", "yaml")
    (event,) = definition.steps
    assert event == _program()["workflow"].build().step("paid").__class__(
        id="paid", event="order.paid", match='event["order"] == input["order"]'
    )
    assert f"`{Subjects().external('order.paid', 'p104')}`" in PAGE
    assert f"up to {NAME_PARTS_MAX} words and {NAME_CHARS_MAX} characters" in PAGE
    assert ("a\n  week" in PAGE, EXTERNAL_MAX_AGE_S) == (True, 7 * 24 * 3600)
    assert f"so {SKEW_MS} ms are allowed" in PAGE
