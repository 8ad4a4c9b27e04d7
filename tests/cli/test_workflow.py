"""``treadle workflow``: register, list, show, validate.

The entry point on a real server; the files are those a user would write.
"""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from tests.client.stage import open_stage

from treadle.cli import exits
from treadle.sdk.settings import Settings

YAML = """
name: review
steps:
  - {kind: task, id: fetch, type: fetch-diff}
  - {kind: agent_loop, id: review, type: llm, after: [fetch], max_iterations: 10}
"""


@pytest.mark.slow
def test_a_file_is_registered_listed_and_shown_as_it_was_written(
    treadle: Run, settings: Settings, tmp_path: Path
) -> None:
    async def set_up() -> None:
        async with open_stage(settings):
            pass

    asyncio.run(set_up())
    (tmp_path / "review.yaml").write_text(YAML)
    (tmp_path / "flow.py").write_text(
        "from treadle.sdk import Workflow\nflow = Workflow('flow')\nflow.task('only')\n"
    )
    registered = treadle("workflow", "register", "review.yaml", "--json").json
    assert registered["workflow"] == "review"
    assert treadle("workflow", "register", "flow.py").out.startswith("flow  ")
    listed = treadle("workflow", "list", "--json").lines
    assert [line["workflow"] for line in listed] == ["flow", "review"]
    shown = treadle("workflow", "show", "review").out
    assert f"# version {registered['version']}" in shown
    (tmp_path / "again.yaml").write_text(shown)
    assert (
        treadle("workflow", "validate", "again.yaml", "--json").json["version"]
        == (registered["version"])
    )
    treadle("workflow", "show", "nothing", code=exits.UNKNOWN)


@pytest.mark.slow
def test_validation_needs_no_server_and_lists_every_problem(
    treadle: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TREADLE_NATS_URL", "nats://127.0.0.1:9")
    (tmp_path / "bad.yaml").write_text(YAML.replace("[fetch]", "[fetsh]") + "timeout: 3\n")
    validate = ("workflow", "validate")
    told = treadle(*validate, "bad.yaml", "--json", code=exits.USAGE).json
    assert told["valid"] is False and len(told["problems"]) == 2
    assert {problem["path"] for problem in told["problems"]} == {"timeout", "steps[1].after[0]"}
    text = treadle(*validate, "bad.yaml", code=exits.USAGE).err
    assert "2 problems" in text and "fetch" in text
    for directory in (".", "./", ".."):
        told = treadle(*validate, directory, code=exits.USAGE).err
        assert f"{directory} is a directory, and a file is wanted" in told
    (tmp_path / "one.yaml").write_text("name: one\nsteps: [{kind: task, id: a, type: a}]\n")
    assert treadle(*validate, "one.yaml").out.endswith("is valid, 1 step\n")
    for missing in ("missing.py", "missing.yaml"):
        assert missing in treadle(*validate, missing, code=exits.USAGE).err


def test_a_file_that_ends_the_process_does_not_choose_the_exit_code(
    treadle: Run, tmp_path: Path
) -> None:
    (tmp_path / "q.py").write_text("raise SystemExit(0)\n")
    for command in (["workflow", "validate"], ["workflow", "register"], ["worker"]):
        told = treadle(*command, "q.py", code=exits.USAGE).err
        assert "q.py cannot be imported: it ended the process with SystemExit(0) at line 1" in told
