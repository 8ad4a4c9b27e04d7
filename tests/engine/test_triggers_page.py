"""The page about triggers: its Python runs, and what it names is there.

Method: the block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
import typer.main
from tests.pages import block_of, served
from typer import core

from treadle.cli.main import app
from treadle.engine.core.triggers import CAUGHT_UP_MAX, ON_TIME_MS
from treadle.sdk.settings import Settings
from treadle.sdk.triggers.naming import CATCH_UPS, run_id
from treadle.sdk.triggers.times import MACROS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "triggers.md").read_text()


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = block_of("triggers.md")
    view, result = served(names, settings, monkeypatch)
    assert result == "the last 1 days"
    assert len(view.next_ms) == 5
    assert {datetime.fromtimestamp(at / 1_000, UTC).hour for at in view.next_ms} <= {7, 8}


def test_one_message_starts_a_run_of_each_workflow(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = block_of("triggers.md", "python fan-out")
    assert served(names, settings, monkeypatch) == ["book ada", "mail ada"]


def test_the_page_names_commands_policies_and_expressions_that_there_are() -> None:
    commands = set(re.findall(r"^\$ treadle trigger (\w+)", PAGE, re.MULTILINE))
    group = typer.main.get_command(app)
    assert isinstance(group, core.TyperGroup)
    triggers = group.commands["trigger"]
    assert isinstance(triggers, core.TyperGroup)
    assert commands | {"resume", "delete"} == set(triggers.commands)
    assert all(f"| `{policy}`" in PAGE for policy in CATCH_UPS)
    assert all(f"`{macro}`" in PAGE for macro in MACROS)
    assert f"more than {CAUGHT_UP_MAX}, the newest {CAUGHT_UP_MAX}" in PAGE
    assert "more than a minute late" in PAGE and ON_TIME_MS == 60_000
    at = datetime(2026, 2, 3, 8, tzinfo=UTC)
    assert f"`{run_id('mornings', round(at.timestamp() * 1_000))}`" in PAGE
