"""The page about lists is true. Method: run its Python against a real engine, and compare its
tables with what the code takes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.pages import block_of, served

from treadle.engine.index.beside import RUNS_MIN
from treadle.engine.index.table import CACHE_KIB
from treadle.sdk.listing.filters import STATUSES, RunsWanted
from treadle.sdk.listing.wire import ANSWER_S
from treadle.sdk.metadata import CHARS_MAX
from treadle.sdk.settings import Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "listing.md").read_text()


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = block_of("listing.md")
    assert served(names, settings, monkeypatch) == ["160", "120"]


def test_the_page_names_the_filters_statuses_and_limits_that_there_are() -> None:
    filters = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)))
    assert set(filters) == set(RunsWanted.__annotations__)
    assert all(f"`{status}`" in PAGE for status in STATUSES)
    assert f"at most {CHARS_MAX:,} characters" in PAGE
    assert "From a thousand runs on" in PAGE and RUNS_MIN == 1_000
    assert f"within {ANSWER_S:g} s" in PAGE and f"up to {CACHE_KIB // 1024} MB" in PAGE
