"""The page about testing runs as one program, and says what is tried.
Method: its blocks fenced as ``python run`` are executed in order, without a server."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.pages import program_of

PAGE = Path(__file__).resolve().parents[2] / "docs" / "testing.md"
pytestmark = pytest.mark.timeout(120)


def test_the_page_runs_and_its_broken_handler_is_caught() -> None:
    names = asyncio.run(program_of("testing.md"))
    assert {each.by for each in names["report"].boundaries} == {"worker", "engine"}
    assert "everything delivered twice" in names["message"]
