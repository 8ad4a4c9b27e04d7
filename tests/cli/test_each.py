"""``treadle run start --each``: a run for each line of a file or of standard input.

The entry point on a real server; no engine runs. One command is killed and given again.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest
from tests.cli.conftest import Run, environment
from tests.client.stage import open_stage

from treadle.cli import exits
from treadle.sdk import Workflow
from treadle.sdk.settings import Settings

LINES = 120


@pytest.fixture(autouse=True)
def registered(settings: Settings) -> None:
    async def story() -> None:
        async with open_stage(settings) as stage:
            workflow = Workflow("order", input=dict)
            workflow.task("work")
            await stage.client.register(workflow)

    asyncio.run(story())


def test_each_line_is_a_run_and_the_same_file_again_starts_nothing(
    treadle: Run, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text('{"order": "a1"}\n\n{"order": "a2"}\n')
    start = ("run", "start", "order", "--each", str(file), "--id", "import")
    done = treadle(*start, "--metadata", "batch=7")
    assert sorted(done.out.split()) == ["import-1", "import-2"]
    assert done.err.strip() == "2 started"
    again = treadle(*start)
    assert (again.out, again.err.strip()) == ("", "2 were there before")
    assert treadle("run", "show", "import-2", "--json").json["metadata"] == {"batch": "7"}


def test_a_run_may_be_named_by_what_its_line_says(treadle: Run) -> None:
    start = ("run", "start", "order", "--each", "-", "--id-by", 'input["order"]', "--json")
    lines = '{"order": "a1"}\nnot json\n{"order": 7}\n{}\n{"order": ""}\n{"order": "a1"}'
    done = treadle(*start, stdin=lines, code=exits.PARTIAL).lines
    *outcomes, last = done
    by_number = {each["number"]: each for each in outcomes}
    assert by_number[3] == {"number": 3, "result": "started", "run": "7"}
    assert {by_number[n]["result"] for n in (2, 4, 5)} == {"refused"}
    assert "not JSON" in by_number[2]["error"] and "'order'" in by_number[4]["error"]
    assert {by_number[1]["run"], by_number[6]["run"]} == {"a1"}
    assert last["counts"]["refused"] == 3
    assert [line["id"] for line in treadle("run", "list", "--json").lines] != []
    again = treadle(*start, stdin=lines, code=exits.PARTIAL).lines[-1]
    assert again["counts"] == {"there": 3, "refused": 3}


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--each", "-", "--wait"), "--wait is of one run"),
        (("--each", "-", "--input", "1"), "--input is of one run"),
        (("--each", "-", "--id", "a", "--id-by", "input"), "--id and --id-by both name"),
        (("--each", "-", "--id-by", "input["), "it is not an expression"),
        (("--each", "no-such-file"), "no-such-file cannot be read"),
        (("--id-by", "input"), "--id-by is of --each"),
    ],
)
def test_what_does_not_go_together_is_refused(
    treadle: Run, options: tuple[str, ...], told: str
) -> None:
    assert told in treadle("run", "start", "order", *options, code=exits.USAGE, stdin="1").err


@pytest.mark.slow
def test_a_command_that_is_killed_and_given_again_starts_each_line_once(
    settings: Settings, tmp_path: Path
) -> None:
    file = tmp_path / "orders.jsonl"
    file.write_text("".join(f'{{"order": {n}}}\n' for n in range(LINES)))
    command = [sys.executable, "-m", "treadle.cli", "run", "start", "order", "--each", str(file)]
    command += ["--id", "k", "--at-once", "4"]
    with subprocess.Popen(
        command, env=environment(settings), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        for _ in range(LINES // 4):
            assert process.stdout.readline()
        os.kill(process.pid, 9)
    again = subprocess.run(command, env=environment(settings), capture_output=True, check=True)
    assert b"were there before" in again.stderr

    async def story() -> Counter[str]:
        async with open_stage(settings) as stage:
            found: Counter[str] = Counter()
            for n in range(1, LINES + 1):
                kinds = [event.kind async for event in stage.client.history(f"k-{n}")]
                found[f"k-{n}"] = kinds.count("run.requested")
            assert (await stage.client.count_runs()).total == LINES
            return found

    assert asyncio.run(story()) == Counter(f"k-{n}" for n in range(1, LINES + 1))
