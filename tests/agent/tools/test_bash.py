"""The shell tool: bounded in time, output and processes.
Method: real commands in a temporary directory, through the executor."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from tests.agent.tools.stage import Recorder, call, execute, until

from treadle.worker.agent.core.calls import ToolResult
from treadle.worker.agent.tools import process_group
from treadle.worker.agent.tools.bash import bash_tool
from treadle.worker.agent.tools.declaring import check_tools
from treadle.worker.agent.tools.errors import InvalidTool
from treadle.worker.agent.tools.executing import execute_batch
from treadle.worker.cancellation import CancelToken


def run(command: str, *, timeout_s: float | None = None, **options: Any) -> ToolResult:
    arguments = {"command": command, **({} if timeout_s is None else {"timeout_s": timeout_s})}
    return execute([call("bash", "t1", **arguments)], [bash_tool(**options)])[0]


def seen(result: ToolResult) -> dict[str, Any]:
    return json.loads(str(result.content))


def is_alive(pid: int) -> bool:
    """True unless the process has ended; a zombie that nobody collects has ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    if not Path("/proc/self/stat").exists():
        return True  # A system without it, on which the signal has told.
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False  # It ended between the signal and the look.
    return stat.rpartition(")")[2].split()[0] != "Z"


def has_ended(pid: int) -> bool:
    """True once the process has ended, for which the kernel may need a moment after the signal."""
    deadline = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.005)
    return not is_alive(pid)


def test_an_observation_is_one_envelope(tmp_path: Path) -> None:
    result = run("echo one; echo two >&2; pwd", workdir=tmp_path)
    observation = seen(result)
    assert list(observation) == [
        "schema", "tool", "call_id", "command", "workdir", "status", "exit_code", "timed_out",
        "duration_ms", "output", "truncated_bytes",
    ]  # fmt: skip
    assert observation.pop("duration_ms") >= 0
    assert observation == {
        "schema": "treadle.tool_observation.v1",
        "tool": "bash",
        "call_id": "t1",
        "command": "echo one; echo two >&2; pwd",
        "workdir": str(tmp_path),
        "status": "ok",
        "exit_code": 0,
        "timed_out": False,
        "output": f"one\ntwo\n{tmp_path}\n",
        "truncated_bytes": 0,
    }
    assert (result.status, result.effect) == ("ok", "committed")


def test_a_failing_command_is_an_error_with_its_exit_code() -> None:
    result = run("echo no; exit 3")
    assert (result.status, result.error_type, result.effect) == ("error", "exit_code", "unknown")
    assert seen(result)["exit_code"] == 3 and seen(result)["output"] == "no\n"


def test_silence_is_said() -> None:
    assert seen(run("true"))["output"] == "(no output)"


@pytest.mark.parametrize("command", ["", "  \n"])
def test_an_empty_command_is_refused(command: str) -> None:
    result = run(command)
    assert result.status == "refused" and seen(result)["status"] == "refused"
    assert result.effect == "none"


def test_an_interactive_command_is_refused_with_the_reason(tmp_path: Path) -> None:
    result = run("touch made && vim made", workdir=tmp_path)
    assert result.status == "refused" and "vim" in seen(result)["output"]
    assert not (tmp_path / "made").exists()


def test_a_policy_refuses_and_fails_closed(tmp_path: Path) -> None:
    def no_network(command: str) -> str | None:
        return "no network here" if "curl" in command else None

    def broken(command: str) -> str | None:
        raise KeyError

    assert "no network here" in seen(run("curl a.example", policy=no_network))["output"]
    assert run("true", policy=no_network).status == "ok"
    assert run("touch x", policy=broken, workdir=tmp_path).status == "refused"
    assert not (tmp_path / "x").exists()


def test_input_is_closed() -> None:
    assert seen(run("cat; echo end"))["output"] == "end\n"


def test_the_environment_can_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (".profile", ".bash_profile", ".bashrc"):
        (tmp_path / name).write_text("echo from a profile")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TREADLE_TEST_SECRET", "s3cret")
    inherited = seen(run("echo $TREADLE_TEST_SECRET"))
    assert inherited["output"] == "s3cret\n"
    own = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "MINE": "m"}
    replaced = seen(run("echo x$TREADLE_TEST_SECRET$MINE", env=own))
    assert replaced["output"] == "xm\n"


def test_at_its_timeout_the_whole_group_is_killed(tmp_path: Path) -> None:
    command = "echo begun; sleep 300 & echo $! > child; wait"
    began_s = time.monotonic()
    result = run(command, timeout_s=2.0, workdir=tmp_path)
    assert time.monotonic() - began_s < 20
    observation = seen(result)
    assert (result.status, result.effect) == ("timeout", "unknown")
    assert observation["timed_out"] and observation["exit_code"] is None
    assert observation["output"] == "begun\n"
    assert has_ended(int((tmp_path / "child").read_text()))


def test_a_group_that_ignores_the_polite_signal_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process_group, "TERM_GRACE_S", 0.1)
    command = "trap '' TERM; echo $$ > shell; while true; do sleep 0.05; done"
    assert run(command, timeout_s=0.5, workdir=tmp_path).status == "timeout"
    assert has_ended(int((tmp_path / "shell").read_text()))


@pytest.mark.parametrize("by", ["token", "task"])
def test_a_cancel_kills_the_whole_group(tmp_path: Path, by: str) -> None:
    child = tmp_path / "child"
    token = CancelToken()

    async def main() -> None:
        tools = check_tools([bash_tool(workdir=tmp_path)])
        calls = [call("bash", command="sleep 300 & echo $! > child.tmp; mv child.tmp child; wait")]
        env = Recorder().env(cancelled=token)
        batch = asyncio.create_task(execute_batch(calls, tools, env))
        await until(child.exists)
        if by == "token":
            token.trip("cancelled")
            assert (await batch)[0].status == "cancelled"
        else:
            batch.cancel()
            with pytest.raises(asyncio.CancelledError):
                await batch
        await until(lambda: not is_alive(int(child.read_text())))

    asyncio.run(main())


def test_a_background_process_that_holds_the_pipe_does_not_hang_the_call(tmp_path: Path) -> None:
    began_s = time.monotonic()
    result = run("sleep 300 & echo $! > child; echo done", workdir=tmp_path)
    assert result.status == "ok" and seen(result)["output"] == "done\n"
    assert time.monotonic() - began_s < 5
    assert has_ended(int((tmp_path / "child").read_text()))


def test_a_process_that_left_the_group_does_not_hang_the_call_either(tmp_path: Path) -> None:
    escape = "import os,time; os.setsid(); open('c','w').write(str(os.getpid())); time.sleep(60)"
    code = f'{sys.executable} -c "{escape}"'
    began_s = time.monotonic()
    result = run(f"{code} & while ! test -s c; do sleep 0.05; done; echo done", workdir=tmp_path)
    assert seen(result)["output"] == "done\n" and time.monotonic() - began_s < 30
    os.kill(int((tmp_path / "c").read_text()), 9)


def test_a_long_output_keeps_its_beginning_and_its_end() -> None:
    observation = seen(run("echo first; seq 1 200000; echo last", max_output=4_000))
    output = observation["output"]
    assert output.startswith("first\n1\n") and output.endswith("200000\nlast\n")
    assert len(output) < 4_100 and f"{observation['truncated_bytes']} bytes left out" in output
    assert observation["truncated_bytes"] > 1_000_000


def test_an_endless_output_fills_no_memory_and_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group, "OUTPUT_BYTES_STOP", 4 * 1024 * 1024)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result = run("yes")
    observation = seen(result)
    assert (result.status, observation["status"]) == ("error", "output_limit")
    assert "killed" in observation["output"]
    unit = 1024 if sys.platform == "darwin" else 1
    grown_kib = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib) / unit
    assert grown_kib < 3 * 1024


def test_an_output_of_control_characters_stays_one_whole_envelope() -> None:
    result = run("head -c 60000 /dev/zero; head -c 60000 /dev/zero | tr '\\0' '\\1'")
    observation = seen(result)
    assert observation["truncated_bytes"] > 0 and observation["status"] == "ok"
    assert result.full_bytes == 0


def test_a_cut_does_not_split_a_character() -> None:
    output = seen(run("for i in $(seq 1 3000); do printf 'aé€😀'; done", max_output=1_001))[
        "output"
    ]
    assert "\ufffd" not in output and "left out" in output
    assert seen(run("printf 'a\\xff b'"))["output"] == "a\ufffd b"


def test_bounds_outside_of_the_limits_are_refused() -> None:
    with pytest.raises(InvalidTool, match="at most 600") as raised:
        bash_tool(timeout=601, max_output=1)
    assert len(raised.value.problems) == 2
    for timeout_s in (601, 0, -1):
        assert run("true", timeout_s=timeout_s).error_type == "invalid"


def test_a_directory_that_is_missing_is_an_error() -> None:
    result = run("true", workdir="/nowhere/at/all")
    assert result.status == "error" and "FileNotFoundError" in str(result.content)


def test_the_tool_is_sequential_unsafe_to_repeat_and_known_as_a_shell() -> None:
    shell = bash_tool()
    assert shell.sequential and not shell.idempotent and shell.spec.is_shell
    assert list(shell.input_schema["properties"]) == ["command", "timeout_s"]


WORKER = """
import asyncio, sys
from treadle.worker.agent.tools.process_group import run_command
asyncio.run(run_command(sys.argv[1], cwd=sys.argv[2], env={"PATH": sys.argv[3]}, timeout_s=300,
                        output_bytes_max=1000))
"""


@pytest.mark.slow
def test_when_the_worker_is_killed_its_commands_die_with_it(tmp_path: Path) -> None:
    command = "sleep 300 & echo $! > child.tmp; mv child.tmp child; wait"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, command, str(tmp_path), os.environ["PATH"]]
    )
    child = tmp_path / "child"

    async def main() -> None:
        await until(child.exists, 20)
        pid = int(child.read_text())
        assert is_alive(pid)
        worker.kill()
        worker.wait()
        await until(lambda: not is_alive(pid))

    try:
        asyncio.run(main())
    finally:
        worker.kill()
        worker.wait()


KILLED_BEFORE = """
import os, pathlib, signal
from treadle.worker.agent.tools.guard import Guard

def watch(self, group):
    pathlib.Path("shell.tmp").write_text(str(group))
    os.rename("shell.tmp", "shell")
    os.kill(os.getpid(), signal.SIGKILL)

Guard.watch = watch
"""


def test_a_command_does_not_begin_before_it_would_die_with_its_worker(tmp_path: Path) -> None:
    program = KILLED_BEFORE + WORKER
    worker = subprocess.run(
        [sys.executable, "-c", program, "touch ran; sleep 300", str(tmp_path), os.environ["PATH"]],
        cwd=tmp_path,
        check=False,
        timeout=50,
    )
    assert worker.returncode == -signal.SIGKILL
    assert has_ended(int((tmp_path / "shell").read_text()))
    assert not (tmp_path / "ran").exists()


def test_no_descriptor_or_process_is_left_behind() -> None:
    async def main() -> None:
        tools = check_tools([bash_tool()])
        calls = [call("bash", "t", command="true")]
        await execute_batch(calls, tools, Recorder().env())
        before = len(os.listdir("/dev/fd"))
        for _ in range(3):
            await execute_batch(calls, tools, Recorder().env())
        assert len(os.listdir("/dev/fd")) == before

    asyncio.run(main())
