"""The page about operating runs: its Python runs.

Method: each block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import pytest
from tests.pages import block_of, served

from treadle.sdk.settings import Settings


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(block_of("operations.md"), settings, monkeypatch) == 50
