"""What reaches a terminal: nothing that steers it, and tables that keep what one needs.
Method: print through each door of ``output`` and read the streams; a width is given."""

from __future__ import annotations

import logging

import pytest

from treadle.cli import logs, output, views
from treadle.sdk.client import RunEvent, RunView, StepView
from treadle.sdk.messages import Failure

EVIL = "\x1b[2J\x1b]0;owned\x07 \x9b1m \r \u202e half \ud800"
SAFE = "\\u001b[2J\\u001b]0;owned\\u0007 \\u009b1m \\u000d \\u202e half \\ud800"
LONG_ID = "nightly-review-of-the-largest-repository-1734"


def failed_run(run: str, why: str) -> RunView:
    return RunView(
        id=run,
        workflow="code-review",
        status="failed",
        requested_ms=1_000,
        ended_ms=3_000,
        failure=Failure("Boom", why, traceback=why),
        failed_step="s",
        steps=(StepView(id="s", kind="task", status="failed", failure=Failure("Boom", why)),),
        metadata={"for": why},
    )


def test_control_characters_of_others_are_shown_and_not_obeyed(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.say(EVIL, "green")
    output.remark(EVIL)
    output.report(ValueError(EVIL), as_json=False)
    output.report(ValueError(EVIL), as_json=False, with_traceback=True)
    output.table(("A", "B"), [(EVIL, EVIL)])
    view = failed_run("r1", EVIL)
    views.show(view)
    views.listing([view])
    views.event(
        RunEvent(kind="step.failed", run="r1", time_ms=1, failure=view.failure), frozenset()
    )
    told = "".join(capsys.readouterr())
    assert told.count(SAFE) >= 10
    assert all(each == "\n" or each.isprintable() for each in told)


def test_lines_and_tabs_stay_where_text_has_them_but_no_event_forges_a_second_line(
    capsys: pytest.CaptureFixture[str],
) -> None:
    output.say("a:\n\tb")
    forged = RunEvent(kind="step.failed", run="r1", time_ms=1, failure=Failure("X", "a\nrun.ended"))
    views.event(forged, frozenset())
    told = capsys.readouterr().out.splitlines()
    assert told[:2] == ["a:", "\tb"] and len(told) == 3 and told[2].endswith("X: a run.ended")


def test_a_traceback_keeps_its_indentation(capsys: pytest.CaptureFixture[str]) -> None:
    views.show(failed_run("r1", 'Traceback:\n  File "app.py"\n    raise'))
    assert '\n      File "app.py"\n        raise\n' in capsys.readouterr().out


def test_log_lines_for_a_person_are_safe_too(capsys: pytest.CaptureFixture[str]) -> None:
    root = logging.getLogger()
    treadle = logging.getLogger("treadle")
    before = root.handlers[:], root.level, treadle.level
    try:
        logs.configure(as_json=False)
        treadle.warning("failed: %s", EVIL)
    finally:
        root.handlers[:], level, own = before
        root.setLevel(level)
        treadle.setLevel(own)
    assert f"failed: {SAFE}\n" in capsys.readouterr().err


@pytest.mark.parametrize("width", [80, 60])
def test_on_a_narrow_terminal_the_error_is_cut_and_never_the_id_or_the_status(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WIDTH_OFF_TERMINAL", width)
    why = "the service answered 503 " * 10
    views.listing([failed_run("r1", why), failed_run("f" * 20, why)])
    short = capsys.readouterr().out.splitlines()
    assert len(short) == 3
    assert all("code-review  failed  1970" in line for line in short[1:])
    views.listing([failed_run(LONG_ID, why), failed_run("r1", why)])
    long = capsys.readouterr().out.splitlines()
    assert len(long) == 3 and f"{LONG_ID}  code-review  failed  1970" in long[1]


def test_with_room_for_it_the_error_is_cut_at_the_edge(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "WIDTH_OFF_TERMINAL", 80)
    views.listing([failed_run("r1", "it broke " * 30)])
    _, line = capsys.readouterr().out.splitlines()
    assert "s: Boom: it broke" in line and line.endswith("…") and len(line) <= 80


def test_an_error_without_a_text_is_its_type(capsys: pytest.CaptureFixture[str]) -> None:
    output.report(TimeoutError(), as_json=False)
    output.report(KeyError(), as_json=False, with_traceback=True)
    told = capsys.readouterr().err
    assert told.startswith("error: TimeoutError\n") and "error: KeyError. This is a bug" in told
    assert "Boom\n" in _shown_failure(capsys)


def _shown_failure(capsys: pytest.CaptureFixture[str]) -> str:
    views.show(failed_run("r1", ""))
    return capsys.readouterr().out
