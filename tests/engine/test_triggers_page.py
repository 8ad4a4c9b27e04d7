"""The page about triggers: its Python runs, and what it names is there.

Method: the block is executed as it stands; its client finds a real server, an engine and a worker.
"""

from __future__ import annotations

import asyncio
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import typer.main
from typer import core

from treadle.cli.main import app
from treadle.engine.core.triggers import CAUGHT_UP_MAX, ON_TIME_MS
from treadle.sdk.client import TriggerView
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.sdk.triggers.naming import CATCH_UPS, run_id
from treadle.sdk.triggers.times import MACROS

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "triggers.md").read_text()


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile(block, "docs/triggers.md", "exec"), names)
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)

    async def story() -> tuple[TriggerView, str]:
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(names["worker"], workflows=[names["workflow"]], **place):
            return await names["main"]()

    view, result = asyncio.run(asyncio.wait_for(story(), 30))
    assert result == "the last 1 days"
    assert len(view.next_ms) == 5
    assert {datetime.fromtimestamp(at / 1_000, UTC).hour for at in view.next_ms} <= {7, 8}


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
