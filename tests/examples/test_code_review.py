"""The code review on a real repository: what was fetched is what is reviewed and published.

Method: a repository made by git, the example's worker as a process, a strict fake of the model.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from tests.examples.stage import EXAMPLES, play

from treadle.sdk.errors import RunFailed
from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import Turn, text, tool_use, turn

pytestmark = pytest.mark.slow

OLD = "def total(prices):\n    return sum(prices)\n\n\ndef count(prices):\n    return len(prices)\n"
NEW = OLD.replace("sum(prices)", "sum(prices) / len(prices)")
USER = "from shop import total\n\nprint(total([1, 2]))\n"


@pytest.fixture
def git(tmp_path: Path) -> Callable[..., str]:
    """Run git in a repository with a branch ``change`` beside ``main``."""
    repository = tmp_path / "shop"
    repository.mkdir()

    def run(*arguments: str) -> str:
        who = ("-c", "user.name=Ada", "-c", "user.email=ada@example.com")
        done = subprocess.run(
            ["git", "-C", str(repository), *who, *arguments],
            check=True,
            capture_output=True,
            text=True,
        )
        return done.stdout.strip()

    run("init", "-q", "-b", "main")
    (repository / "shop.py").write_text(OLD)
    (repository / "bill.py").write_text(USER)
    run("add", ".")
    run("commit", "-qm", "Begin")
    run("checkout", "-qb", "change")
    (repository / "shop.py").write_text(NEW)
    run("commit", "-qam", "Change the total")
    return run


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The example as a module."""
    monkeypatch.setenv("TREADLE_REVIEW_MODEL", "anthropic:none")
    spec = importlib.util.spec_from_file_location("code_review", EXAMPLES / "code_review.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "code_review", module)
    spec.loader.exec_module(module)
    return module


def judged(decision: str, line: int = 2, severity: str = "blocking") -> Turn:
    remark = {"path": "shop.py", "line": line, "severity": severity, "text": "bill.py wants a sum."}
    given = {"summary": "It is a mean now.", "decision": decision, "remarks": [remark]}
    return turn(tool_use("final_output", given, id="toolu_end"))


LOOK = turn(
    tool_use("read_file", {"path": "shop.py"}, id="toolu_read"),
    tool_use("search", {"words": "total("}, id="toolu_search"),
)


def reviewed(settings: Settings, tmp_path: Path, *turns: Turn, head: str = "change") -> Any:
    return play(
        settings,
        "code_review.py",
        "code-review",
        {"base": "main", "head": head},
        list(turns),
        tmp_path / "log",
        TREADLE_REVIEW_MODEL="anthropic:claude-test",
        TREADLE_REVIEW_REPOSITORY=str(tmp_path / "shop"),
        TREADLE_REVIEW_OUTPUT=str(tmp_path / "reviews"),
    )


def test_a_review_is_published_with_what_it_found(
    settings: Settings, tmp_path: Path, git: Callable[..., str]
) -> None:
    result, fake = reviewed(settings, tmp_path, LOOK, judged("request_changes"))
    assert result == {"published": "run-1.md", "decision": "request_changes", "remarks": 1}
    published = (tmp_path / "reviews" / "run-1.md").read_text()
    assert git("rev-parse", "change")[:12] in published
    assert "`shop.py:2` (blocking) bill.py wants a sum." in published
    assert "+    return sum(prices) / len(prices)" in fake.requests[0].last_text
    results = fake.requests[1].tool_results
    assert "2\t    return sum(prices) / len(prices)" in str(results["toolu_read"])
    assert "bill.py:3:print(total([1, 2]))" in str(results["toolu_search"])
    # Nothing of the review stays in the repository.
    assert git("for-each-ref", "refs/treadle") == ""
    assert git("status", "--porcelain") == ""


def test_a_remark_beside_the_diff_and_a_decision_against_the_remarks_are_not_accepted(
    settings: Settings, tmp_path: Path, git: Callable[..., str]
) -> None:
    turns = [judged("request_changes", 20), judged("approve"), judged("approve", severity="minor")]
    result, fake = reviewed(settings, tmp_path, *turns)
    assert result["decision"] == "approve"
    assert "does not show shop.py:20" in str(fake.requests[1].tool_results["toolu_end"])
    assert "if, and only if" in str(fake.requests[2].tool_results)


def test_a_branch_that_is_not_there_fails_the_run_and_asks_no_model(
    settings: Settings, tmp_path: Path, git: Callable[..., str]
) -> None:
    with pytest.raises(RunFailed, match="'nowhere' is no commit") as caught:
        reviewed(settings, tmp_path, turn(text("never")), head="nowhere")
    assert caught.value.step == "fetch"


def test_the_lines_of_a_diff_are_those_of_the_new_files(
    example: ModuleType, git: Callable[..., str]
) -> None:
    shown = example.lines_of(git("diff", "main", "change"))
    assert shown == {"shop.py": {1, 2, 3, 4, 5}}
    assert example.lines_of(git("diff", "change", "main", "-U0")) == {"shop.py": {2}}


def test_without_a_model_the_example_says_what_to_set() -> None:
    path = str(EXAMPLES / "code_review.py")
    environment = {k: v for k, v in os.environ.items() if k != "TREADLE_REVIEW_MODEL"}
    command = [sys.executable, "-c", f"import runpy; runpy.run_path({path!r})"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "TREADLE_REVIEW_MODEL is not set" in done.stderr
    told = subprocess.run([sys.executable, path], capture_output=True, text=True, check=True)
    assert "treadle dev path/to/examples/code_review.py" in told.stdout
