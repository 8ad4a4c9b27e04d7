"""The pages about scheduled starts and about versions: their Python runs on a real server.

Method: the block is executed as it stands; its client finds an engine and a worker.
"""

from __future__ import annotations

import pytest
from tests.pages import block_of, served

from treadle.sdk.settings import Settings


def test_the_page_about_scheduled_starts_runs(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = block_of("scheduled-starts.md")
    assert served(names, settings, monkeypatch) == ["CALL ANA", "bob"]


def test_the_page_about_versions_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(block_of("versions.md"), settings, monkeypatch) == 2_000
