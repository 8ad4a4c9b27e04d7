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


def test_a_share_of_the_runs_is_about_the_one_that_is_asked_for() -> None:
    name_for = block_of("versions.md", "python share")["name_for"]
    names = [name_for(f"customer-{n}") for n in range(2_000)]
    assert names == [name_for(f"customer-{n}") for n in range(2_000)]
    assert 150 < names.count("checkout-next") < 250
