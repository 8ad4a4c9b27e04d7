"""The page about lanes: its Python runs, and what it names is there.

Method: the block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import asyncio
import inspect
import re
from pathlib import Path
from typing import Any

import pytest

from treadle.engine import lanes
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local

PAGE = Path(__file__).resolve().parents[2] / "docs" / "lanes.md"


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), names)
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)

    async def story() -> None:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=[names["workflow"]], **place):
            assert await names["main"]() == ["HELLO", "ARE YOU THERE?"]

    asyncio.run(asyncio.wait_for(story(), 30))


def test_the_page_names_what_the_engine_logs_about_lanes() -> None:
    logged = set(re.findall(r"engine\.lane-[a-z-]+(?= %s|\")", inspect.getsource(lanes)))
    points = set(re.findall(r'reach\("(engine\.lane-[a-z]+)"\)', inspect.getsource(lanes)))
    page = PAGE.read_text()
    assert {name for name in logged - points if f"`{name}`" not in page} == set()
    assert len(logged - points) == 3
