"""The page about lists is true. Method: run its Python against a real engine, and compare its
tables with what the code takes."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from treadle.engine.index.beside import RUNS_MIN
from treadle.engine.index.table import CACHE_KIB
from treadle.sdk.listing.filters import STATUSES, RunsWanted
from treadle.sdk.listing.wire import ANSWER_S
from treadle.sdk.metadata import CHARS_MAX
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "listing.md").read_text()


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "docs/listing.md", "exec"), names)
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)

    async def story() -> list[str]:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=[names["workflow"]], **place):
            return await names["main"]()

    assert asyncio.run(asyncio.wait_for(story(), 30)) == ["160", "120"]


def test_the_page_names_the_filters_statuses_and_limits_that_there_are() -> None:
    filters = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (`.+?) \|", PAGE, re.MULTILINE)))
    assert set(filters) == set(RunsWanted.__annotations__)
    assert all(f"`{status}`" in PAGE for status in STATUSES)
    assert f"at most {CHARS_MAX:,} characters" in PAGE
    assert "From a thousand runs on" in PAGE and RUNS_MIN == 1_000
    assert f"within {ANSWER_S:g} s" in PAGE and f"up to {CACHE_KIB // 1024} MB" in PAGE
