"""What the demo concludes from the workers' journal and the run's events.

Method: the pure ``Story`` and ``Summary``, fed by hand in the orders that a kill can produce.
"""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from treadle.cli.demo.places import examples_dir
from treadle.cli.demo.screen import Screen, show_next, show_summary
from treadle.cli.demo.story import Story
from treadle.cli.demo.summary import Summary, describe_kill

Entry = dict[str, Any]


def _entry(what: str, iteration: int, attempt: int, pid: int, at: float, **more: object) -> Entry:
    where = {"iteration": iteration, "attempt": attempt, "pid": pid}
    return {"at": at, "what": what, **where, **more}


def _until_edited(iteration: int, attempt: int, pid: int, at: float) -> list[Entry]:
    place = (iteration, attempt, pid, at)
    return [
        _entry("started", *place),
        _entry("asked", *place),
        _entry("asked", *place),
        _entry("edited", *place, edit="clock.py: x"),
    ]


def _until_saved(iteration: int, attempt: int, pid: int, at: float) -> list[Entry]:
    place = (iteration, attempt, pid, at)
    tested = _entry("tested", *place, passed=3, failed=1)
    return [*_until_edited(*place), tested, _entry("saved", *place)]


def _story(*entries: Entry) -> Story:
    story = Story()
    for entry in entries:
        story.note(entry)
    return story


def _rows(story: Story) -> dict[str, str]:
    return dict(describe_kill(story.kills[0]))


def test_a_kill_before_the_checkpoint_costs_the_work_of_that_iteration_only() -> None:
    story = _story(*_until_saved(0, 1, 7, 100.0))
    story.commit(1)
    for entry in _until_edited(1, 1, 7, 101.0):
        story.note(entry)
    story.kill(7, 101.5)
    for entry in _until_saved(1, 2, 8, 103.25):
        story.note(entry)
    story.commit(2)
    kill = story.kills[0]
    assert kill.phase == "testing" and kill.resumed_after_s == 1.75
    assert [e.phase for e in story.executions] == ["committed", "killed", "committed"]
    assert (story.committed, story.model_calls) == (2, 6)
    assert _rows(story) == {
        "killed": "worker 7 in iteration 1, attempt 1, after its edit, before its checkpoint",
        "time to resume": "1.75 s, as iteration 1, attempt 2, by worker 8",
        "executed again": "2 model calls and the edit (clock.py: x) of that iteration; "
        "nothing that was committed",
    }


def test_a_kill_after_the_checkpoint_costs_nothing() -> None:
    story = _story(*_until_saved(0, 1, 7, 100.0))
    story.kill(7, 100.5)
    story.note(_entry("started", 0, 2, 8, 102.0))
    story.commit(1)
    assert story.kills[0].phase == "saved"
    assert _rows(story)["executed again"] == "nothing: its checkpoint had been saved"


def test_a_commit_that_is_heard_of_after_the_kill_is_no_resumption() -> None:
    story = _story(*_until_saved(0, 1, 7, 100.0))
    story.kill(7, 100.5)
    story.commit(1)
    story.note(_entry("started", 1, 1, 8, 102.0))
    assert story.kills[0].resumed is None
    assert story.executions[0].phase == "committed"
    assert "already settled" in _rows(story)["time to resume"]


def test_a_commit_that_is_heard_of_before_the_journal_loses_nothing_of_it() -> None:
    story = Story()
    story.commit(1)
    for entry in _until_saved(0, 1, 7, 100.0):
        story.note(entry)
    execution = story.executions[0]
    assert (execution.phase, execution.passed, execution.model_calls) == ("committed", 3, 2)
    assert story.current(7) is None


def test_a_kill_of_a_worker_at_rest_is_told_as_such() -> None:
    story = _story(*_until_saved(0, 1, 7, 100.0))
    story.commit(1)
    story.kill(7, 100.5)
    assert _rows(story) == {"killed": "worker 7, while it had nothing in hand"}


def test_two_kills_in_one_iteration_are_resumed_one_after_the_other() -> None:
    story = _story(*_until_edited(0, 1, 7, 100.0))
    story.kill(7, 101.0)
    for entry in _until_edited(0, 2, 8, 102.0):
        story.note(entry)
    story.kill(8, 103.0)
    for entry in _until_saved(0, 3, 9, 105.0):
        story.note(entry)
    assert [kill.resumed_after_s for kill in story.kills] == [1.0, 2.0]


@pytest.mark.parametrize("terminal", [False, True])
def test_the_screen_tells_kill_and_commit_on_a_terminal_and_in_a_pipe(terminal: bool) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=terminal, width=120, markup=False)
    story = _story(*_until_edited(0, 1, 7, 100.0))
    with Screen(console, story) as screen:
        screen.refresh()
        story.kill(7, 100.5)
        for entry in _until_saved(0, 2, 8, 102.0):
            story.note(entry)
        story.commit(1)
        screen.refresh()
    summary = Summary(
        run="r1",
        status="completed",
        model="m",
        iterations=1,
        executions=2,
        model_calls=4,
        kills=story.kills,
        why_no_kill="",
        seconds=2,
        diff="--- a/x\n+++ b/x\n",
        repaired=True,
        verdict="4 passed in 0.1s",
    )
    show_summary(console, summary)
    show_next(console, examples_dir())
    text = out.getvalue()
    for part in ("killed -9", "committed", "3 pass, 1 fail", "time to resume", "4 passed in 0.1s"):
        assert part in text
    assert "agent_loop.py\n" in text.split("treadle dev ")[1] and "treadle run trace RUN" in text
