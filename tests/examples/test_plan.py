"""The plan example on a real package: a fake model works badly first, the real tests find it.

Method: the example's worker as a process, on a real server; the fake reviewer says what the tests
that it has run say.
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.examples.stage import EXAMPLES, play

from treadle.sdk.settings import Settings
from treadle.worker.agent.testing import RecordedRequest, Turn, text, tool_use, turn

pytestmark = pytest.mark.slow

REQUEST = "Times such as 9:05 are printed as 09:5. Mend it; the tests of the clock say how."
CLOCK = EXAMPLES / "code_repair" / "timetable" / "timetable" / "clock.py"
PATH = "timetable/clock.py"


def answer(request: RecordedRequest) -> Turn:
    """Play all four agents."""
    answers = sum(message["role"] == "assistant" for message in request.messages)
    goal = str(request.messages[0]["content"][0]["text"])
    role = str(request.body["system"])
    if "explore" in role or "plan a change" in role:
        asked = [
            tool_use("search", {"words": "minute % 60"}),
            tool_use("read_file", {"path": PATH}),
        ]
        return turn(*asked) if answers == 0 else turn(text("format_clock pads no minutes."))
    if "You change" in role:
        return mend("A review of it" if "<review>" in goal else "", answers)
    if answers == 0:
        meddling = {"path": PATH, "content": "raise SystemExit"}
        return turn(tool_use("write_file", meddling))
    if answers == 1:
        return turn(tool_use("run_tests", {"select": "clock or formatted"}))
    (result,) = map(str, request.tool_results.values())
    word = "DONE" if '"passed":true' in result.replace(" ", "") else "NEEDS_FIX"
    found = "" if word == "DONE" else '"format_clock(545) is wrong."'
    said = f'```json\n{{"verdict": "{word}", "findings": [{found}]}}\n```'
    return turn(text(said))


def mend(review: str, answers: int) -> Turn:
    """Mend the clock: badly, and after a review well."""
    if answers:
        return turn(text("Changed format_clock."))
    padding = ":02}" if review else ":3}"
    content = CLOCK.read_text().replace("{minute % 60}", "{minute % 60" + padding)
    return turn(tool_use("write_file", {"path": PATH, "content": content}))


def test_work_that_fails_its_tests_is_sent_back_and_then_done(
    settings: Settings, tmp_path: Path
) -> None:
    before = CLOCK.read_text()
    result, fake = play(
        settings,
        "plan.py",
        "change-package",
        REQUEST,
        answer,
        tmp_path / "log",
        TREADLE_PLAN_MODEL="anthropic:claude-test",
        TREADLE_PLAN_WORKSPACES=str(tmp_path / "copies"),
    )
    assert (result["verdict"], result["reviews"]) == ("DONE", 2)
    assert '+    return f"{minute // 60:02}:{minute % 60:02}"' in result["diff"]
    headers = ("+++", "---")
    changed = [line for line in result["diff"].splitlines() if not line.startswith(headers)]
    assert "".join(line[0] for line in changed if line[0] in "+-") == "-+"
    assert CLOCK.read_text() == before
    refused = [
        result
        for request in fake.requests
        for result in map(str, request.tool_results.values())
        if "nothing may be changed" in result
    ]
    assert len(refused) == 2  # Once in each review.


def test_without_a_model_the_example_says_what_to_set(tmp_path: Path) -> None:
    environment = {k: v for k, v in os.environ.items() if k != "TREADLE_PLAN_MODEL"}
    command = [sys.executable, "-c", f"import runpy; runpy.run_path({str(EXAMPLES / 'plan.py')!r})"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert "TREADLE_PLAN_MODEL is not set" in done.stderr


def test_run_by_python_it_says_how_to_try_it() -> None:
    path = EXAMPLES / "plan.py"
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == (ast.get_docstring(ast.parse(path.read_text())) or "").strip()
