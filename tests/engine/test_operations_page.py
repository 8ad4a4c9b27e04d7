"""The page about operating runs: its Python runs.

Method: each block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest

from treadle.sdk.settings import Settings
from treadle.sdk.testing import local

PAGE = Path(__file__).resolve().parents[2] / "docs" / "operations.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
RESULTS: list[Any] = [50]


@pytest.mark.parametrize(("block", "result"), list(zip(BLOCKS, RESULTS, strict=True)))
def test_the_page_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, block: str, result: Any
) -> None:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, str(PAGE), "exec"), names)
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)

    async def story() -> None:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=[names["workflow"]], **place):
            assert await names["main"]() == result

    asyncio.run(asyncio.wait_for(story(), 30))
