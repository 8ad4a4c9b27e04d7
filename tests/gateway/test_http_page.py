"""The page about HTTP: its Python runs, and what it names is there.

Method: the block is executed as it stands, on a real server; a gateway answers the request."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
import typer.main
from tests.gateway.stage import open_stage
from tests.pages import block_of
from typer import core

from treadle.cli.main import app
from treadle.engine.gateway.app import CONNECTIONS_MAX
from treadle.sdk.client import Webhook
from treadle.sdk.settings import Settings
from treadle.sdk.triggers.web import SCHEMES

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "http.md").read_text()


def test_the_page_runs(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    names = block_of("http.md")
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)

    async def story() -> None:
        async with open_stage(settings, names["worker"]) as stage:
            await names["main"]()
            told = await stage.post("/api/orders/quote", {"looms": 2})
            assert (told.status_code, told.text) == (200, '{"total":6}')
            assert told.headers["cache-control"] == "no-store"
            assert (await stage.ended(told.headers["treadle-run-id"])).status == "completed"

    asyncio.run(story())


def test_the_page_names_commands_schemes_and_bounds_that_there_are() -> None:
    group = typer.main.get_command(app)
    assert isinstance(group, core.TyperGroup) and "http" in group.commands
    trigger = group.commands["trigger"]
    assert isinstance(trigger, core.TyperGroup)
    create = trigger.commands["create"]
    assert isinstance(create, core.TyperGroup)
    assert (
        set(re.findall(r"trigger create (\w+)", PAGE))
        == {"http", "webhook"}
        <= set(create.commands)
    )
    named = {option for line in re.findall(r"treadle .*", PAGE) for option in line.split()}
    known = {
        option
        for command in (*create.commands.values(), group.commands["http"], group.commands["dev"])
        for parameter in command.params
        for option in parameter.opts
    }
    assert {option for option in named if option.startswith("--")} <= known
    assert all(f"| `{scheme}`" in PAGE for scheme in SCHEMES)
    assert f"more than {Webhook(secret='').tolerance_s} seconds off" in PAGE
    assert f"serves {CONNECTIONS_MAX:,} at once" in PAGE
