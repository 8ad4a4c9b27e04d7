"""``treadle collect``: what it stores, prints, lists and refuses.

The entry point on a real server; no engine runs, what is collected is read from its stream.
"""

from __future__ import annotations

import asyncio

import pytest
from tests.cli.conftest import Run
from tests.client.stage import open_stage

from treadle.cli import exits
from treadle.sdk import Workflow
from treadle.sdk.collecting import Batch, Debounce
from treadle.sdk.settings import Settings


@pytest.fixture
def registered(settings: Settings) -> Settings:
    """A namespace with a workflow that collects its starts and one that does not."""

    async def register() -> None:
        async with open_stage(settings) as stage:
            for name, collect in (
                ("index", Debounce(5, 60, 'input["of"]')),
                ("list", Batch(2, 600)),
                ("plain", None),
            ):
                workflow = Workflow(name, collect=collect)
                workflow.task("work")
                await stage.client.register(workflow)

    asyncio.run(register())
    return settings


def test_a_start_is_collected_once_for_its_id(treadle: Run, registered: Settings) -> None:
    collect = ("collect", "index", "--input", '{"of": "a"}', "--id", "s1")
    assert treadle(*collect).out == "collected for index of a: start 1\n"
    told = {"workflow": "index", "key": "a", "id": "s1", "sequence": 1}
    assert treadle(*collect, "--json").json == told
    other = treadle("collect", "index", "--input", '{"of": 2}', "--id", "s1", code=exits.USAGE)
    assert "was collected with another input" in other.err
    assert treadle("collect", "index", "--input", '{"of": 2}').out.endswith("start 2\n")

    async def read() -> list[str]:
        async with open_stage(registered) as stage:
            s = stage.subjects
            found = stage.js.read(s.collect_stream, s.all_collected)
            return [each.subject.split(".", 1)[1] async for each in found]

    first, second = asyncio.run(read())
    assert first.startswith("col.index.") and first.endswith(".i.s1") and ".n." in second


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("plain",), "does not collect its starts"),
        (("index",), "no key by which its starts are collected"),
        (("index", "--id", "a.b", "--input", '{"of": 1}'), "start id"),
    ],
)
def test_what_cannot_be_collected_is_refused(
    treadle: Run, registered: Settings, arguments: tuple[str, ...], says: str
) -> None:
    assert says in treadle("collect", *arguments, code=exits.USAGE).err


def test_a_workflow_that_is_not_registered_collects_nothing(
    treadle: Run, registered: Settings
) -> None:
    refused = treadle("collect", "none", code=exits.UNKNOWN)
    assert "'none' is not registered" in refused.err


def test_what_is_collected_and_no_run_yet_is_listed_by_window(
    treadle: Run, registered: Settings
) -> None:
    assert "no start waits" in treadle("collect", "list").err
    for of in ("a", "b", "a"):
        treadle("collect", "index", "--input", f'{{"of": "{of}"}}')
    for _ in range(3):
        # A workflow whose name is that of a command.
        treadle("collect", "start", "list", "--input", "1")
    found = treadle("collect", "list", "--json").lines
    told = [(each["workflow"], each["key"], each["count"], each["is_closed"]) for each in found]
    assert told == [
        ("list", "", 2, True),
        ("index", "b", 1, False),
        ("index", "a", 2, False),
        ("list", "", 1, False),
    ]
    of_a = found[2]
    assert (of_a["kind"], of_a["first"], of_a["last"]) == ("debounce", 1, 3)
    assert of_a["closes_ms"] == of_a["newest_ms"] + 5_000 > of_a["opened_ms"] + 5_000
    batch = found[3]
    assert batch["closes_ms"] == batch["opened_ms"] + 600_000 and batch["size_max"] == 2
    lines = treadle("collect", "list", "list").out.splitlines()
    assert len(lines) == 3 and "2 of 2" in lines[1] and "closed, waits for an engine" in lines[1]
    assert "1 of 2" in lines[2] and "in 9m" in lines[2]
