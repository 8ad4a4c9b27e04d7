"""``treadle trigger``: create, list, show, pause, resume, fire, delete, and what is refused.

The entry point on a real server without an engine; firings are what the clocks of a zone show.
"""

from __future__ import annotations

import asyncio
import re

import pytest
from tests.cli.conftest import Run
from tests.client.stage import open_stage

from treadle.cli import exits
from treadle.sdk import Workflow
from treadle.sdk.settings import Settings


@pytest.fixture
def report(settings: Settings) -> str:
    """A registered workflow whose input is an object, or nothing."""

    async def set_up() -> None:
        async with open_stage(settings) as stage:
            workflow = Workflow("report", input=dict[str, int])
            workflow.task("write")
            await stage.client.register(workflow)

    asyncio.run(set_up())
    return "report"


CREATE = ("trigger", "create", "cron")
MORNINGS = ("mornings", "report", "0 9 * * mon-fri", "--tz", "Europe/Berlin")
GIVEN = ("--input", '{"days": 1}')


@pytest.mark.slow
def test_a_trigger_is_created_listed_shown_paused_resumed_and_deleted(
    treadle: Run, report: str
) -> None:
    told = treadle(*CREATE, *MORNINGS, *GIVEN, "--catch-up", "last", "--metadata", "team=x").out
    assert "mornings  report  active" in told
    assert len(re.findall(r"^  next \w{3} .* 09:00:00 \+0[12]00$", told, re.MULTILINE)) == 5
    assert "cron '0 9 * * mon-fri' in Europe/Berlin, missed firings: last" in told
    assert 'input {"days":1}' in told and "metadata team=x" in told
    listed = treadle("trigger", "list").out
    assert "mornings" in listed and "09:00:00" in listed and "(in " in listed
    treadle("trigger", "pause", "mornings")
    shown = treadle("trigger", "show", "mornings", "--json").json
    assert (shown["paused"], shown["next_ms"]) == (True, [])
    assert shown["notes"][0]["command"] == "treadle trigger resume mornings"
    assert shown["on"] == {
        "kind": "cron",
        "expression": "0 9 * * mon-fri",
        "zone": "Europe/Berlin",
        "catch_up": "last",
    }
    paused = treadle("trigger", "show", "mornings").out
    assert "! it is paused" in paused and "paused" in treadle("trigger", "list").out
    assert treadle("trigger", "resume", "mornings", "--json").json == {
        "trigger": "mornings",
        "done": "resumed",
    }
    (line,) = treadle("trigger", "list", "--json").lines
    assert (line["name"], line["paused"], len(line["next_ms"])) == ("mornings", False, 5)
    treadle("trigger", "delete", "mornings")
    assert "no triggers" in treadle("trigger", "list").err
    gone = treadle("trigger", "show", "mornings", code=exits.UNKNOWN).err
    assert "trigger 'mornings' does not exist" in gone


def test_a_trigger_is_fired_by_hand_once_for_each_id(treadle: Run, report: str) -> None:
    treadle(*CREATE, *MORNINGS, *GIVEN)
    assert treadle("trigger", "fire", "mornings", "--id", "now", "--json").json["run"] == "now"
    assert treadle("trigger", "fire", "mornings", "--id", "now").out == "now\n"
    assert treadle("run", "show", "now", "--json").json["metadata"] == {"trigger": "mornings"}
    (event,) = treadle("run", "history", "now", "--json").lines
    assert event["value"] == {"days": 1}


def test_the_same_trigger_again_changes_nothing_and_another_one_has_to_replace_it(
    treadle: Run, report: str
) -> None:
    treadle(*CREATE, *MORNINGS, *GIVEN)
    treadle(*CREATE, *MORNINGS, *GIVEN)
    other = (*CREATE, "mornings", "report", "@daily", *GIVEN)
    assert "exists and is another one" in treadle(*other, code=exits.USAGE).err
    assert treadle(*other, "--replace", "--json").json["on"]["expression"] == "@daily"


@pytest.mark.slow
def test_a_subject_trigger_is_created_listed_shown_fired_and_deleted(
    treadle: Run, report: str, namespace: str
) -> None:
    create = ("trigger", "create", "subject", "orders", "report", f"{namespace}.orders.*")
    told = treadle(*create, "--max-in-flight", "3").out
    stream = f"in stream '{namespace}_CAPTURE_"
    assert "orders  report  active" in told and stream in told and "at most 3 runs" in told
    listed = treadle("trigger", "list").out
    assert "subject" in listed and f"messages on '{namespace}.orders.*'" in listed
    fired = treadle("trigger", "fire", "orders", "--id", "now", "--input", '{"n": 1}').out
    assert fired == "now\n"
    assert (
        "does not fit" in treadle("trigger", "fire", "orders", "--input", "3", code=exits.USAGE).err
    )
    again = treadle(*create, code=exits.USAGE).err
    assert "exists and is another one" in again and "messages on" in again
    treadle("trigger", "delete", "orders")
    assert "no triggers" in treadle("trigger", "list").err
    bad = (*create[:-1], "a..b")
    assert "an empty part" in treadle(*bad, code=exits.USAGE).err


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        (("m", "repot", "@daily"), exits.UNKNOWN, "workflow 'repot' is not registered"),
        (("m", "report", "61 * * * *", *GIVEN), exits.USAGE, "the minute field '61' is wrong"),
        (
            ("m", "report", "@daily", "--tz", "Europe/Berln", *GIVEN),
            exits.USAGE,
            "Did you mean 'Europe/Berlin'?",
        ),
        (
            ("m", "report", "@daily", "--catch-up", "skipp", *GIVEN),
            exits.USAGE,
            "Did you mean 'skip'?",
        ),
        (("m", "report", "@daily", "--input", "3"), exits.USAGE, "does not fit"),
        (("m", "report", "@daily", "--version", "0", *GIVEN), exits.UNKNOWN, "'report@0'"),
        (("m" * 48, "report", "@daily", *GIVEN), exits.USAGE, "48 characters, and 47 are allowed"),
        (("a.b", "report", "@daily", *GIVEN), exits.USAGE, "is not a valid id"),
        (
            ("m", "report", "@daily", "--metadata", "trigger=x", *GIVEN),
            exits.USAGE,
            "set by the trigger itself",
        ),
    ],
)
def test_what_cannot_be_a_trigger_is_refused(
    treadle: Run, report: str, arguments: tuple[str, ...], code: int, told: str
) -> None:
    assert told in treadle(*CREATE, *arguments, code=code).err
    assert told in treadle(*CREATE, *arguments, "--json", code=code).json["error"]["message"]
    assert treadle("trigger", "list", "--json").lines == []


@pytest.mark.slow
def test_an_unknown_trigger_is_named_with_the_nearest(treadle: Run, report: str) -> None:
    treadle(*CREATE, *MORNINGS, *GIVEN)
    for command in ("show", "pause", "resume", "delete", "fire"):
        told = treadle("trigger", command, "morning", code=exits.UNKNOWN).err
        assert "Did you mean 'mornings'?" in told
