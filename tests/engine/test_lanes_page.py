"""The page about lanes: its Python runs, and what it names is there.

Method: the block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest
from tests.pages import block_of, served

from treadle.engine import lanes
from treadle.sdk.settings import Settings

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lanes.md"


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = block_of("lanes.md")
    assert served(names, settings, monkeypatch) == ["HELLO", "ARE YOU THERE?"]


def test_the_page_names_what_the_engine_logs_about_lanes() -> None:
    logged = set(re.findall(r"engine\.lane-[a-z-]+(?= %s|\")", inspect.getsource(lanes)))
    points = set(re.findall(r'reach\("(engine\.lane-[a-z]+)"\)', inspect.getsource(lanes)))
    page = PAGE.read_text()
    assert {name for name in logged - points if f"`{name}`" not in page} == set()
    assert len(logged - points) == 3
