"""``treadle eval``: tables, JSON lines and exit codes; the examples as their first lines say.

Method: the entry point in this process; no server runs, and none is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from treadle.cli import exits
from treadle.cli.main import main

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "evals"
AGENT = f"{EXAMPLES / 'refund_agent.py'}:agent"
CASES = str(EXAMPLES / "trajectories.yaml")
CASSETTE = str(EXAMPLES / "completed.cassette.json")

Eval = Callable[..., tuple[str, str]]


@pytest.fixture
def evaluate(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Eval:
    """``evaluate(..., code=0)``: what the command wrote to its two outputs."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"):
        monkeypatch.delenv(name, raising=False)

    def run(*arguments: str, code: int = 0) -> tuple[str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main(["eval", *arguments])
        out, err = capsys.readouterr()
        assert ended.value.code == code, (out, err)
        return out, err

    return run


@pytest.fixture
def failing(tmp_path: Path) -> str:
    """A file with a case that fails, and one that passes."""
    path = tmp_path / "failing.yaml"
    path.write_text(
        """
- case_id: asks
  goal: Decide.
  model: [{calls: [{tool: ask_human, args: {question: "Shall I?"}}]}]
  expected: {stop_reason: completed}
- case_id: waits
  goal: Decide.
  model: [{calls: [{tool: ask_human, args: {question: "Shall I?"}}]}]
  expected: {stop_reason: needs_human}
"""
    )
    return str(path)


def test_the_examples_pass_and_show_a_table_and_the_measures(evaluate: Eval) -> None:
    out, err = evaluate(CASES, str(EXAMPLES / "lookup_failure.json"), "--agent", AGENT)
    rows = out.splitlines()
    assert rows[0].split() == ["CASE", "RESULT", "STOP", "TURNS", "CALLS", "TOKENS", "REPLAYS"]
    assert "shipping_lookup_repeated_failure" in out
    assert "7 of 7 passed" in out and "replays successful 100%" in out
    assert err == "", "a mocked failure alarms nobody"


def test_a_failing_case_is_explained_and_exits_with_1(evaluate: Eval, failing: str) -> None:
    out, _ = evaluate(failing, "--agent", AGENT, code=exits.RUN_FAILED)
    assert "! asks: it stopped with needs_human, not completed" in out
    assert "1 of 2 passed" in out


def test_only_the_named_cases_run(evaluate: Eval, failing: str) -> None:
    out, _ = evaluate(failing, "--agent", AGENT, "--case", "waits")
    assert "1 of 1 passed" in out
    _, err = evaluate(failing, "--agent", AGENT, "--case", "wait", code=exits.USAGE)
    assert "'wait' is no case of these files: asks, waits" in err


def test_json_is_one_line_a_case_and_one_with_the_measures(evaluate: Eval, failing: str) -> None:
    out, _ = evaluate(failing, "--agent", AGENT, "--json", code=exits.RUN_FAILED)
    first, second, last = [msgspec.json.decode(line) for line in out.splitlines()]
    assert (first["case"], first["passed"], first["stop_reason"]) == ("asks", False, "needs_human")
    assert second["passed"] and second["replays"] == second["replays_ok"]
    assert last["metrics"]["passed"] == 1


def test_a_cassette_that_goes_the_same_way_exits_with_0(evaluate: Eval) -> None:
    out, _ = evaluate("--cassette", CASSETTE, "--agent", AGENT)
    assert out.strip().endswith("goes the same way")
    out, _ = evaluate("--cassette", CASSETTE, "--agent", AGENT, "--json")
    told = msgspec.json.decode(out)
    assert told["same"] is True and told["differences"] == []


def test_a_cassette_that_goes_another_way_shows_how_and_exits_with_1(
    evaluate: Eval, tmp_path: Path
) -> None:
    changed = tmp_path / "changed.py"
    source = (EXAMPLES / "refund_agent.py").read_text()
    changed.write_text(source.replace('{"refunds_issue_refund"}', '{"refunds_search_policy"}'))
    target = f"{changed}:agent"
    out, _ = evaluate("--cassette", CASSETTE, "--agent", target, code=exits.RUN_FAILED)
    assert "2 differences, recorded -> now" in out
    assert "turn 1, call 2 (refunds_search_policy): decision execute -> denied" in out
    out, _ = evaluate("--cassette", CASSETTE, "--agent", target, "--json", code=exits.RUN_FAILED)
    (decision, _) = msgspec.json.decode(out)["differences"]
    assert (decision["what"], decision["replayed"]) == ("decision", "denied")


def test_nothing_to_evaluate_and_no_agent_are_mistakes_that_say_what_to_do(
    evaluate: Eval, tmp_path: Path, failing: str
) -> None:
    _, err = evaluate("--agent", AGENT, code=exits.USAGE)
    assert "there is nothing to evaluate" in err
    _, err = evaluate(failing, "--agent", f"{AGENT}s", code=exits.USAGE)
    assert "'agents' of it is no Agent" in err
    (tmp_path / "empty.py").write_text("")
    _, err = evaluate(failing, "--agent", str(tmp_path / "empty.py"), code=exits.USAGE)
    assert "of Agents it has: none" in err
    _, err = evaluate(failing, failing, "--agent", AGENT, code=exits.USAGE)
    assert "is the id of a case in an earlier file" in err


def test_the_only_agent_of_a_file_needs_no_name(evaluate: Eval, failing: str) -> None:
    evaluate(failing, "--agent", AGENT.removesuffix(":agent"), "--case", "waits")


def test_every_problem_of_a_file_is_said_and_exits_with_2(evaluate: Eval, tmp_path: Path) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("{case_id: a, goal: b, expected: {stop: x, max_tool_calls: many}}")
    _, err = evaluate(str(path), "--agent", AGENT, code=exits.USAGE)
    assert "expected.stop:" in err and "expected.max_tool_calls:" in err
    out, _ = evaluate(str(path), "--agent", AGENT, "--json", code=exits.USAGE)
    assert msgspec.json.decode(out)["error"]["type"] == "InvalidCases"
