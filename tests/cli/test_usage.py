"""Help, mistakes in the arguments, and what a start of the command costs.

Help by typer's own runner, commands through their entry point, and two as processes.
"""

from __future__ import annotations

import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest
from tests.cli.conftest import Run
from typer.testing import CliRunner

from treadle.cli import exits, options
from treadle.cli.main import app
from treadle.sdk import UserError
from treadle.sdk.bus import handshake
from treadle.sdk.errors import ServerUnavailable

COMMANDS = [
    *("dev", "engine", "worker", "doctor", "demo", "explain"),
    *(
        f"run {name}"
        for name in (
            *("start", "show", "list", "watch", "history"),
            *("result", "cancel", "resume", "signal", "journal"),
            *("steer", "follow-up", "send", "timeline", "diff"),
        )
    ),
    *(f"approvals {name}" for name in ("list", "show", "approve", "reject", "answer")),
    *("eval run", "eval record"),
    *("collect start", "collect list"),
    *(f"workflow {name}" for name in ("register", "list", "show", "validate")),
]


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_speaks_json(command: str) -> None:
    shown = CliRunner().invoke(app, [*command.split(), "--help"], env={"COLUMNS": "200"})
    assert shown.exit_code == 0
    assert "--json" in shown.output


def test_the_help_names_every_command_and_every_exit_code() -> None:
    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    for word in (*(command.split()[0] for command in COMMANDS), *exits.MEANINGS.values()):
        assert word in shown
    constants = {v for k, v in vars(exits).items() if k.isupper() and isinstance(v, int)}
    assert constants == set(exits.MEANINGS)


def test_a_mistake_in_the_arguments_names_the_command_and_exits_with_2(treadle: Run) -> None:
    wrong = treadle("run", "cancle", code=exits.USAGE)
    assert "No such command 'cancle'" in wrong.err and "`treadle run --help`" in wrong.err
    assert "Did you mean 'cancel'? Usage: `" in wrong.err
    as_json = treadle("run", "show", "--json", code=exits.USAGE)
    assert as_json.json["error"]["type"] == "UsageError" and as_json.err == ""


def test_the_help_says_from_where_the_dev_server_is_found() -> None:
    for command in (("dev",), ("run", "list")):
        shown = CliRunner().invoke(app, [*command, "--help"], env={"COLUMNS": "200"}).output
        assert "director" in shown and ("one below it" in shown or "one above it" in shown)


def test_a_server_that_cannot_be_reached_is_one_clear_error(
    treadle: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "OPEN_TIMEOUT_S", 0.2)
    told = treadle("run", "list", "--url", "nats://127.0.0.1:9", "--json", code=exits.SERVER)
    assert told.json["error"]["type"] == ServerUnavailable.__name__
    assert "nats://127.0.0.1:9" in told.json["error"]["message"]


@pytest.mark.slow
def test_a_process_exits_with_the_code_and_keeps_both_outputs_apart(
    treadle_process: Run,
) -> None:
    told = treadle_process("run", "start", "x", "--input", "bob", code=exits.USAGE)
    assert told.out == "" and told.err.startswith("error: --input 'bob' is not JSON")
    told = treadle_process("run", "start", "x", "--input", "bob", "--json", code=exits.USAGE)
    assert told.json["error"]["type"] == "UserError" and told.err == ""


@pytest.mark.slow
def test_a_reader_who_has_seen_enough_is_no_failure(tmp_path: Path) -> None:
    (tmp_path / "flow.py").write_text(
        "from treadle.sdk import Workflow\n"
        "flows = [Workflow(f'w{n}') for n in range(3000)]\n"
        "for flow in flows:\n    flow.task('only')\n    globals()[flow.name] = flow\n"
    )
    validate = [sys.executable, "-m", "treadle.cli", "workflow", "validate", "flow.py"]
    command = subprocess.Popen(
        validate, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None and command.stderr is not None
    command.stdout.readline()
    command.stdout.close()
    told = command.stderr.read()
    command.stderr.close()
    assert (command.wait(20), told) == (exits.OK, b"")


def test_help_does_not_wait_for_the_client_or_the_bus() -> None:
    heavy = "{'nats', 'msgspec', 'rich', 'treadle.sdk', 'treadle.engine', 'treadle.worker'}"
    code = f"import sys, treadle.cli.main; print({heavy} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=20, check=True
    )
    assert done.stdout.strip() == "set()"


def test_values_are_read_from_the_argument_a_file_or_standard_input(tmp_path: Path) -> None:
    file = tmp_path / "input.json"
    file.write_text('{"n": 1}')
    assert options.read_json("--input", '[1, "a"]') == [1, "a"]
    assert options.read_json("--input", f"@{file}") == {"n": 1}
    assert options.read_json("--input", None) is None
    with pytest.raises(UserError, match=r"--input 'ten' is not JSON\. Give JSON .*quotes"):
        options.read_json("--input", "ten")
    with pytest.raises(UserError, match=r"is not JSON: .*truncated"):
        options.read_json("--input", '{"n": 1')
    with pytest.raises(UserError, match=r"missing\.json cannot be read"):
        options.read_json("--input", "@missing.json")
    labels = ["a=1", "b=x=y", "c:=1.5", "d:=true"]
    assert options.read_metadata(labels) == {"a": "1", "b": "x=y", "c": 1.5, "d": True}
    with pytest.raises(UserError, match="KEY=TEXT"):
        options.read_metadata(["a"])


def test_a_bound_is_raised_to_a_number_or_by_a_number() -> None:
    assert options.read_count("--max-iterations", "50") == (50, 0)
    assert options.read_count("--max-iterations", "+10") == (0, 10)
    assert options.read_count("--max-iterations", None) == (0, 0)
    minute = timedelta(seconds=60)
    assert options.read_duration("--max-duration", "60") == (minute, None)
    assert options.read_duration("--max-duration", "+60") == (None, minute)
    for bad in ("-5", "0", "ten", "+", "1.5", "inf", "nan", "1e400"):
        with pytest.raises(UserError, match="--max-iterations"):
            options.read_count("--max-iterations", bad)
    with pytest.raises(UserError, match="longer than any run"):
        options.read_duration("--max-duration", "1e300")


def test_a_bound_no_loop_may_have_is_refused(treadle: Run) -> None:
    for bound in ("+99999999999", "1000001"):
        arguments = ("run", "resume", "r", "--max-iterations", bound)
        assert "more than the 1000000 iterations" in treadle(*arguments, code=exits.USAGE).err
