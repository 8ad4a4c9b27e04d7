"""An agent that goes in circles is noticed, told, and in the end stopped; others are left alone.
Method: stories told turn by turn to the window and the ladder; properties over random calls."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.worker.agent.core.calls import Decision, ToolCall, ToolResult
from treadle.worker.agent.core.entries import Detection
from treadle.worker.agent.core.spec import ToolSpec
from treadle.worker.agent.core.thrash import (
    BLOCKED_TURNS,
    INERT,
    LEVEL_MAX,
    WINDOW,
    Issued,
    Ladder,
    Recent,
    Verdict,
    after_turn,
    blocked_text,
    detect,
    is_storm,
    issued,
    record,
    signature,
    storms,
    suppressed_text,
)
from treadle.worker.agent.tools.canonical import args_hash


def read(args: str = "x", result: str = "r", **changes: Any) -> Issued:
    return Issued(name="read", args=args, result=result, **changes)


def look(args: str) -> Issued:
    return Issued(name="look", args=args, result=args)


def write(args: str = "x", **changes: Any) -> Issued:
    return Issued(name="write", args=args, result="r", mutating=True, **changes)


def shell(args: str, **changes: Any) -> Issued:
    return Issued(name="bash", args=args, result="r", mutating=True, shell=True, **changes)


class Story:
    """An agent's turns since a person last spoke."""

    def __init__(self, *exempt: str) -> None:
        self.recent = Recent()
        self.ladder = Ladder()
        self.exempt = exempt

    def turn(self, *calls: Issued, suppressed: int = 0) -> Verdict:
        self.recent = record(self.recent, calls)
        self.found = detect(self.recent, self.ladder, exempt=self.exempt)
        verdict = after_turn(self.ladder, self.found, proposed=len(calls), suppressed=suppressed)
        self.ladder = verdict.ladder
        return verdict


def test_the_third_identical_call_of_six_is_noticed() -> None:
    story = Story()
    for other in ("a", "b"):
        assert story.turn(read(), look(other)).note == ""
    assert "same arguments" in story.turn(read()).note
    assert story.found is not None
    assert (story.found.tier, story.found.tool, story.found.level) == ("identical", "read", 1)


def test_a_call_that_left_the_window_is_forgotten() -> None:
    story = Story("other")
    others = [Issued(name="other", args=str(n)) for n in range(WINDOW)]
    story.turn(read(), read())
    story.turn(*others)
    assert story.turn(read()).note == ""


def test_the_third_identical_call_does_not_run() -> None:
    recent = record(Recent(), [read()])
    assert not is_storm(recent, read())
    recent = record(recent, [read()])
    assert is_storm(recent, read())
    assert not is_storm(recent, read("y"))
    assert not is_storm(recent, read(), exempt=["read"])


def test_the_third_identical_call_of_one_batch_does_not_run_either() -> None:
    assert storms(Recent(), [read()] * 4) == (False, False, True, True)
    assert storms(Recent(), [read(), read("y"), None, read()]) == (False,) * 4


def test_an_identical_change_is_not_made_a_third_time() -> None:
    recent = record(Recent(), [write(), write()])
    assert is_storm(recent, write())


def test_a_change_between_equal_reads_makes_reading_again_sensible() -> None:
    story = Story()
    for n in range(4):
        assert not is_storm(story.recent, read())
        assert story.turn(read(), write(str(n))).note == "" or story.found.tool == "write"
    refused = write("z", ran=False)
    recent = record(Recent(), [read(), read(), refused])
    assert is_storm(recent, read()), "a change that was refused changed nothing"


def test_calls_that_did_not_run_count_like_those_that_did() -> None:
    recent = record(Recent(), [read(ran=False, failed=True), read(ran=False, failed=True)])
    assert is_storm(recent, read())
    assert detect(record(recent, [read(ran=False)]), Ladder()) is not None


def test_a_call_that_timed_out_counts_double() -> None:
    recent = record(Recent(), [read(timed_out=True, failed=True)])
    assert is_storm(recent, read())
    assert detect(recent, Ladder()) is None
    assert detect(record(recent, [read()]), Ladder()) is not None


def test_a_poll_is_a_repetition_only_while_nothing_changes() -> None:
    recent = Recent()
    for result in ("1", "2", "3", "4"):
        assert not is_storm(recent, read(polling=True))
        recent = record(recent, [read(result=result, polling=True)])
        assert detect(recent, Ladder()) is None
    for _ in range(2):
        recent = record(recent, [read(result="4", polling=True)])
    assert detect(recent, Ladder()) is not None
    assert is_storm(recent, read(polling=True))


def test_four_differing_calls_of_one_tool_that_bring_nothing_are_a_pattern() -> None:
    story = Story()
    for n in range(3):
        assert story.turn(read(str(n), result="nothing found")).note == ""
    assert "differing arguments" in story.turn(read("3", result="nothing found")).note
    assert story.ladder.level == 1
    story.turn(read("4", result="nothing found"))
    assert story.ladder.level == 2


def test_differing_calls_that_each_bring_something_are_remarked_on_once_only() -> None:
    story = Story()
    notes = [story.turn(read(str(n), result=str(n))).note for n in range(12)]
    assert [bool(note) for note in notes] == [False] * 3 + [True] + [False] * 8
    assert story.ladder.level == 1


def test_shell_commands_that_differ_are_no_pattern() -> None:
    story = Story()
    assert all(story.turn(shell(str(n))).note == "" for n in range(8))


def test_three_equal_shell_commands_in_a_row_are_a_loop() -> None:
    story = Story()
    story.turn(shell("make"))
    story.turn(shell("make"), read())
    assert is_storm(story.recent, shell("make"))
    assert story.turn(shell("make")).note != ""


def test_running_the_same_command_after_each_edit_is_no_loop() -> None:
    story = Story()
    for n in range(6):
        assert not is_storm(story.recent, shell("test"))
        assert story.turn(shell(f"edit {n}"), shell("test")).note == ""


def test_exempt_tools_are_left_alone() -> None:
    story = Story("read")
    assert all(story.turn(read()).note == "" for _ in range(8))
    assert story.ladder == Ladder()


def test_a_model_that_turned_to_something_else_is_left_alone() -> None:
    story = Story()
    for _ in range(3):
        story.turn(read())
    assert story.ladder.level == 1
    assert story.turn(write()).note == ""
    assert story.ladder.level == 1


def test_a_model_that_goes_on_is_told_harder_loses_the_tool_and_then_a_person_decides() -> None:
    story = Story()
    for n in range(4):
        told = story.turn(read(str(n), result="-"))
    assert "choose one" in told.note and not told.ladder.blocked
    told = story.turn(read("4", result="-"), look("1"))
    assert "does not run for the next" in told.note
    assert told.ladder.blocked == {"read": BLOCKED_TURNS}
    for n in range(3):
        told = story.turn(read("4", result="-", ran=False), look(f"{n}"), suppressed=1)
        if told.stop:
            break
    assert told.stop == "needs_human"
    assert "A person has to decide" in told.detail


def test_a_blocked_tool_comes_back_and_the_level_stays() -> None:
    ladder = Ladder(level=2, blocked={"read": BLOCKED_TURNS})
    for _ in range(BLOCKED_TURNS):
        assert ladder.blocked
        ladder = after_turn(ladder, None, proposed=1, suppressed=0).ladder
    assert ladder == Ladder(level=2)


def test_a_turn_of_suppressed_calls_only_is_answered_once_and_then_ends_the_run() -> None:
    first = after_turn(Ladder(), None, proposed=2, suppressed=2)
    assert first.stop is None and first.ladder.reflected
    between = after_turn(first.ladder, None, proposed=2, suppressed=1)
    assert between.stop is None
    second = after_turn(between.ladder, None, proposed=1, suppressed=1)
    assert second.stop == "loop_detected"
    assert after_turn(first.ladder, None, proposed=0, suppressed=0).stop is None


def test_the_first_level_is_told_once_in_the_suppressed_result_or_after_the_results() -> None:
    found = Detection(tier="identical", tool="read", level=1)
    assert after_turn(Ladder(), found, proposed=2, suppressed=1).note == ""
    assert "choose one" in after_turn(Ladder(), found, proposed=2, suppressed=0).note
    harder = Detection(tier="identical", tool="read", level=2)
    assert after_turn(Ladder(level=1), harder, proposed=2, suppressed=1).note != ""


def test_what_a_suppressed_call_gets_back_asks_for_another_approach() -> None:
    text = suppressed_text("search")
    for asked in ("why it is not working", "assumption", "two or three approaches", "say so"):
        assert asked in text
    assert "not available" in blocked_text("search")


# ------------------------------------------------------------------ from calls to signatures

SHELL = ToolSpec(name="bash", description="", input_schema={}, is_shell=True)
READ = ToolSpec(name="read", description="", input_schema={}, idempotent=True)


def call(name: str, decision: Decision = "execute", **arguments: Any) -> ToolCall:
    return ToolCall(
        id="1", name=name, input=arguments, args_hash=args_hash(arguments), decision=decision
    )


def back(status: Any = "ok", content: str = "out") -> ToolResult:
    return ToolResult(id="1", name="x", status=status, content=content)


def test_arguments_are_equal_as_json() -> None:
    assert signature({"a": 1, "b": 2}) == signature({"b": 2.0, "a": 1.0})
    assert signature({"a": 1}) != signature({"a": "1"})


@pytest.mark.parametrize("same", ["ls  -la ", 'ls "-la"', "ls -la;", "ls -la # look"])
def test_shell_commands_are_equal_when_their_words_are(same: str) -> None:
    def of(command: str, **more: Any) -> str:
        return signature({"command": command, **more}, is_shell=True)

    assert of(same, timeout=5) == of("ls -la")
    assert of(same) != of("ls -l")
    assert of(same, workdir="/a") != of(same, workdir="/b")


def test_shell_commands_that_do_nothing_are_all_the_same() -> None:
    for command in ("true", ":", "echo ok", "echo 'still here'", "", "# nothing", "true;"):
        assert signature({"command": command}, is_shell=True) == INERT
    for command in ("echo ok > file", "echo `make`", "echo a\nmake", "make", "echo $HOME"):
        assert signature({"command": command}, is_shell=True) != INERT
    assert signature({"command": "echo 'open"}, is_shell=True) == INERT
    assert signature({"command": "true"}) != INERT


def test_a_command_that_does_nothing_changes_nothing() -> None:
    story = Story()
    make = issued(call("bash", command="make"), back(), SHELL)
    nothing = issued(call("bash", command="echo ok"), back(), SHELL)
    assert make is not None and nothing is not None
    assert make.mutating and not nothing.mutating
    for _ in range(2):
        story.turn(make, nothing)
    assert is_storm(story.recent, make)


def test_a_call_is_remembered_with_what_came_of_it() -> None:
    kept = issued(call("read", q=1), back("timeout"), READ)
    assert kept is not None
    assert (kept.ran, kept.failed, kept.timed_out, kept.mutating) == (True, True, True, False)
    refused = issued(call("write", "denied", q=1), back("refused"), None)
    assert refused is not None
    assert (refused.ran, refused.failed, refused.mutating) == (False, True, False)
    proposed = issued(call("write", q=1), None, ToolSpec(name="w", description="", input_schema={}))
    assert proposed is not None
    assert (proposed.mutating, proposed.result, proposed.args) == (True, "", args_hash({"q": 1}))


def test_calls_without_a_hash_are_told_apart_by_their_arguments() -> None:
    unhashed = ToolCall(id="1", name="read", input={"q": 1}, args_hash="", decision="invalid")
    kept = issued(unhashed, None, None)
    assert kept is not None
    assert kept.args == signature({"q": 1})


def test_a_call_the_model_is_not_to_blame_for_is_not_remembered() -> None:
    for decision in ("truncated", "over_budget", "duplicate"):
        assert issued(call("read", decision), back("refused"), READ) is None
    assert record(Recent(), [None]) == Recent((), 1)


# ------------------------------------------------------------------ properties

anything = st.builds(
    Issued,
    name=st.sampled_from(["read", "write"]),
    args=st.sampled_from("xyz"),
    result=st.sampled_from("12"),
    ran=st.booleans(),
    failed=st.booleans(),
    mutating=st.booleans(),
    timed_out=st.booleans(),
    polling=st.booleans(),
    shell=st.booleans(),
)


@given(st.lists(st.lists(anything, max_size=4), max_size=12))
def test_the_window_is_bounded_and_the_level_never_falls(turns: list[list[Issued]]) -> None:
    story = Story()
    level = 0
    for calls in turns:
        verdict = story.turn(*calls)
        assert len(story.recent.calls) <= WINDOW
        assert level <= story.ladder.level <= min(level + 1, LEVEL_MAX)
        assert (verdict.stop == "needs_human") == (story.ladder.level == LEVEL_MAX)
        level = story.ladder.level
        if verdict.stop:
            return


@given(st.lists(anything, max_size=8), st.integers(0, 3))
def test_what_is_kept_survives_json(calls: list[Issued], level: int) -> None:
    recent, ladder = record(Recent(), calls), Ladder(level=level, blocked={"read": 2})
    for kept in (recent, ladder):
        assert msgspec.json.decode(msgspec.json.encode(kept), type=type(kept)) == kept


@given(st.lists(anything, max_size=8))
def test_a_call_without_its_like_is_never_suppressed_nor_noticed(calls: list[Issued]) -> None:
    other = Issued(name="other", args="x")
    recent = record(Recent(), calls)
    assert not is_storm(recent, other)
    assert detect(record(recent, [other]), Ladder()) is None
