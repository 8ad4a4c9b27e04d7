"""The page about dead letters: its Python runs, and its figures are those of the code.

Method: the block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import pytest
from tests.pages import DOCS, block_of, served

from treadle.cli.doctor_stored import LETTERS_READ_MAX
from treadle.engine.intake import POISON_DELIVERIES
from treadle.engine.retention import RETENTION_S
from treadle.engine.topology import DEAD_LETTER_MAX_AGE_S
from treadle.sdk.limits import LOSSES_MAX
from treadle.sdk.settings import Settings

PAGE = " ".join((DOCS / "dead-letters.md").read_text(encoding="utf-8").split())


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served(block_of("dead-letters.md"), settings, monkeypatch) == "sent to ana"


def test_the_page_says_the_figures() -> None:
    assert DEAD_LETTER_MAX_AGE_S == 90 * 24 * 3600 and "for 90 days" in PAGE
    assert POISON_DELIVERIES == 20 and "failed twenty times" in PAGE
    assert LOSSES_MAX == 10 and "with the eleventh loss" in PAGE
    assert RETENTION_S == 30 * 24 * 3600 and "kept for 30 days and its letter for 90" in PAGE
    assert LETTERS_READ_MAX == 1_000 and "the last 1,000" in PAGE
