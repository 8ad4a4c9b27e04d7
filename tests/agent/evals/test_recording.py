"""From the command line end to end: a production run becomes an offline test, and can be looked at.

Method: a real server, an engine and a worker run an agent; then only the command is used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.agent.evals.test_fetching import payer, scripted

from treadle.cli import exits
from treadle.cli.main import main
from treadle.sdk import Client, Workflow
from treadle.sdk.settings import Settings
from treadle.sdk.testing import local
from treadle.worker import Worker
from treadle.worker.agent.core.checkpoints import checkpoint
from treadle.worker.agent.core.entries import Started, Stopped
from treadle.worker.agent.core.state import State
from treadle.worker.agent.stored import checkpoints, read_journal

APP = """
from typing import Any

from treadle.worker.agent import Agent, Policy, tool


@tool
async def pay(cents: int) -> str:
    "Pay."
    raise NotImplementedError


agent = Agent(
    "payer",
    model="anthropic:claude-none",
    tools=[pay],
    output_type=dict[str, Any],
    policy=Policy(forbidden=FORBIDDEN),
)
"""
Treadle = Callable[..., tuple[str, str]]


@pytest.fixture
def treadle(
    settings: Settings,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> Treadle:
    """``treadle(..., code=0)``: what the command wrote, in an empty directory."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TREADLE_NATS_URL", settings.url)
    monkeypatch.setenv("TREADLE_NAMESPACE", settings.namespace)
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = capsys.readouterr()
        assert ended.value.code == code, (out, err)
        return out, err

    return run


def paid_run(settings: Settings) -> None:
    """Let a worker pay once, in run ``r-1``."""

    async def story() -> None:
        workflow, worker = Workflow("payments"), Worker("w")
        workflow.agent_loop("pay", "payer", max_iterations=9)
        worker.agent("payer", payer(scripted(), []))
        place = {"url": settings.url, "namespace": settings.namespace}
        async with local(worker, workflows=[workflow], **place) as client:
            run = await client.start("payments", "Pay what is due.", id="r-1")
            assert await asyncio.wait_for(run.result(), 20) == {"paid": 5}

    asyncio.run(story())


def test_a_production_run_is_recorded_replays_without_tokens_and_shows_a_semantic_diff(
    settings: Settings, treadle: Treadle
) -> None:
    paid_run(settings)
    Path("same.py").write_text(APP.replace("FORBIDDEN", "set()"))
    Path("strict.py").write_text(APP.replace("FORBIDDEN", '{"pay"}'))
    out, err = treadle("eval", "record", "r-1", "--step", "pay", "-o", "r-1.cassette.json")
    assert "entries of step 'pay'" in out
    assert "treadle eval --cassette r-1.cassette.json" in err
    out, _ = treadle("eval", "--cassette", "r-1.cassette.json", "--agent", "same.py:agent")
    assert "goes the same way" in out
    out, _ = treadle(
        "eval",
        "--cassette",
        "r-1.cassette.json",
        "--agent",
        "strict.py:agent",
        code=exits.RUN_FAILED,
    )
    assert "turn 1, call 1 (pay): decision execute -> denied" in out


@pytest.mark.slow
def test_a_recording_needs_no_step_if_there_is_one_and_replaces_no_file_by_accident(
    settings: Settings, treadle: Treadle
) -> None:
    paid_run(settings)
    out, _ = treadle("eval", "record", "r-1", "-o", "a.json", "--json")
    told = msgspec.json.decode(out)
    assert told["run"] == "r-1" and told["entries"] > 5
    _, err = treadle("eval", "record", "r-1", "-o", "a.json", code=exits.USAGE)
    assert "a.json exists" in err and "--force" in err
    treadle("eval", "record", "r-1", "-o", "a.json", "--force")
    _, err = treadle("eval", "record", "r-1", "-o", "no/such/a.json", code=exits.USAGE)
    assert "no/such/a.json cannot be written" in err
    _, err = treadle("eval", "record", "r-1", "--step", "x", "-o", "b.json", code=exits.USAGE)
    assert "step 'x' of run 'r-1' has no journal" in err
    assert not Path("b.json").exists()


def test_an_operator_sees_each_checkpoint_by_kind_and_where_a_worker_would_go_on(
    settings: Settings, treadle: Treadle
) -> None:
    paid_run(settings)
    out, _ = treadle("run", "journal", "r-1")
    lines = out.splitlines()
    assert lines[0].split() == ["#", "ITERATION", "TURN", "AT", "BYTES", "AFTER", "ABOUT"]
    kinds = [line.split()[5] for line in lines[1:-1]]
    assert kinds == [
        "input",
        "llm_response",
        "tool_start",
        "tool_result",
        "turn_end",
        "llm_response",
        "tool_result",
        "final",
    ]
    assert lines[-1] == "after #7 (final) a worker goes on: nothing: the run is over"
    out, _ = treadle("run", "journal", "r-1", "--json")
    start = msgspec.json.decode(out.splitlines()[2])
    assert (start["kind"], start["about"], start["begun"]) == ("tool_start", "pay", ["pay"])
    assert start["size_bytes"] > 100 and start["entries"] == ["judged", "started"]


def test_a_call_that_has_begun_is_what_a_takeover_turns_on_whatever_was_stored_since(
    settings: Settings,
) -> None:
    started = Started(id="p", name="pay", args_hash="", key="k")
    first, state = checkpoint(0, 0, 10, [started], State())
    assert first.begun == ("pay",) and "reconcile" in first.goes_on
    waiting, _ = checkpoint(1, 0, 10, [Stopped(reason="needs_human")], State())
    assert waiting.kind == "human_pause"
    assert state.started


def test_the_journal_is_listed_from_python_too(settings: Settings) -> None:
    paid_run(settings)

    async def story() -> tuple[Any, Any]:
        async with Client.connect(settings=settings):
            listed = await checkpoints("r-1", "pay", settings)
            return listed, await read_journal("r-1", "pay", settings)

    listed, records = asyncio.run(story())
    assert [each.number for each in listed] == list(range(len(records)))
    assert [each.size_bytes for each in listed] == [each.size_bytes for each in records]
