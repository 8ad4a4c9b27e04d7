"""``treadle explain``: what it prints and exits with; and the page that explains its reasons.

The entry point on a real server; no engine runs, what one would write is written by hand."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import get_args

import pytest
from tests.cli.conftest import Run
from tests.client.stage import Stage, chain, done, play

from treadle.cli import exits
from treadle.sdk.client.explain.reason import Level, ReasonKind
from treadle.sdk.settings import Settings

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "explain.md").read_text(encoding="utf-8")


def test_a_stuck_run_prints_its_main_reason_first_and_exits_with_a_code_of_its_own(
    treadle: Run, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        run = await stage.client.start(chain(), None, id="r1")
        (program,) = re.findall(r"^```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
        code = compile(program, "explain.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        await eval(code, {"run": run})

    play(settings, story)
    lines = treadle("explain", "r1", code=exits.STUCK).out.splitlines()
    assert lines[0].startswith(
        "run r1 of flow is stuck: no engine is running, so nothing moves; one event waits, since 2"
    )
    assert lines[1] == "    treadle engine"
    assert lines[2].startswith("also: requested, not yet taken by an engine (since 2")
    told = treadle("explain", "r1", "--json", code=exits.STUCK).json
    assert (told["run"], told["status"], told["state"]) == ("r1", "requested", "stuck")
    assert [reason["kind"] for reason in told["reasons"]] == ["engine_down", "requested"]
    assert told["reasons"][0]["command"] == "treadle engine"


def test_a_suggested_command_is_for_the_namespace_that_was_asked(
    treadle: Run, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        steps = {"first": done(), "loop": done()}
        await stage.document("r1", definition=version, status="cancelled", steps=steps)

    play(settings, story)
    monkeypatch.delenv("TREADLE_NAMESPACE")
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    here = ("--namespace", settings.namespace)
    (_, suggested) = treadle("explain", "r1", *here).out.splitlines()
    assert suggested == f"    treadle run history r1 --namespace {settings.namespace}"
    treadle(*suggested.split()[1:], code=exits.OK)
    shown = treadle("explain", "r1", *here, "--url", settings.url).out
    assert f"treadle run history r1 --url {settings.url} --namespace {settings.namespace}" in shown
    secret = settings.url.replace("nats://", "nats://ann:secret@")
    assert "secret" not in treadle("explain", "r1", *here, "--url", secret).out


def test_an_ended_run_is_well_and_one_that_is_not_there_says_where_it_was_looked_for(
    treadle: Run, settings: Settings
) -> None:
    async def story(stage: Stage) -> None:
        version = await stage.client.register(chain())
        steps = {"first": done(), "loop": done()}
        await stage.document(
            "r1", definition=version, status="completed", steps=steps, ended_ms=9_000
        )

    play(settings, story)
    lines = treadle("explain", "r1").out.splitlines()
    assert lines[0].startswith("run r1 of flow has ended: it completed at 1970-")
    assert lines[1:] == ["    treadle run result r1"]
    gone = treadle("explain", "gone", "--json", code=exits.UNKNOWN).json["error"]
    assert gone["type"] == "UnknownRun"
    assert f"It is not in namespace '{settings.namespace}'" in gone["message"]


def test_the_page_names_every_reason_with_its_level() -> None:
    rows = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", PAGE, re.MULTILINE))
    assert set(rows) == set(get_args(ReasonKind))
    assert set(rows.values()) <= set(get_args(Level))
