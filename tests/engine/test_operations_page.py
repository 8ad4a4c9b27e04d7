"""The page about operating runs: its Python runs.

Method: each block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

from typing import Any

import pytest
from tests.pages import block_of, served

from treadle.sdk.settings import Settings


@pytest.mark.parametrize(
    ("fence", "result"),
    [
        ("python", 50),
        ("python starts", [{"started": 5}, {"there": 5}, {"started": 3}]),
        pytest.param("python many", {"done": 3}, marks=pytest.mark.slow),
    ],
)
def test_the_page_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, fence: str, result: Any
) -> None:
    assert served(block_of("operations.md", fence), settings, monkeypatch) == result
