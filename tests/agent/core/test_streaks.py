"""Trouble in a row is told to the model first and ends the run only if it goes on.
Method: each streak by example up to its bound, and what ends it; one property over all."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.worker.agent.core.calls import Decision, ToolCall, ToolResult
from treadle.worker.agent.core.streaks import (
    BREAKER_FAILURES,
    ERROR_CHARS_MAX,
    ERRORS_MAX,
    FAILURES_MAX,
    OPEN,
    OUTPUT_RETRIES_MAX,
    PAUSES_MAX,
    Advice,
    Outcome,
    OutcomeKind,
    Streaks,
    after_answer,
    after_check,
    after_tools,
    open_text,
    outcome,
)


def error(n: object, name: str = "") -> Outcome:
    return Outcome(name or f"tool{n}", "error", f"cause {n}", str(n))


def told(streaks: Streaks, *turns: Outcome | list[Outcome]) -> Advice:
    """Return the advice after the last of these turns; those before it stop nothing."""
    advice = Advice(streaks=streaks)
    for turn in turns:
        assert advice.stop is None, advice.detail
        advice = after_tools(advice.streaks, turn if isinstance(turn, list) else [turn])
    return advice


# ------------------------------------------------------------------ tools


def test_three_failures_in_a_row_are_named_with_their_causes() -> None:
    assert told(Streaks(), error(1), error(2)).notes == ()
    (note,) = told(Streaks(), error(1), error(2), error(3)).notes
    assert all(f"tool{n}: cause {n}" in note for n in (1, 2, 3))


def test_six_failures_in_a_row_are_for_a_person() -> None:
    advice = told(Streaks(), *[error(n) for n in range(6)])
    assert advice.stop == "needs_human"
    assert "cause 5" in advice.detail


def test_a_success_ends_the_streak() -> None:
    good = Outcome("read", "ok")
    advice = told(Streaks(), error(1), error(2), good, error(3), error(4))
    assert advice.notes == ()
    assert advice.streaks.failures == 2
    assert told(advice.streaks, error(5)).notes != ()


def test_the_very_same_failure_again_is_not_counted_here() -> None:
    advice = told(Streaks(), error(1), error(1), error(1), error(2))
    assert (advice.streaks.failures, advice.notes) == (2, ())
    other_arguments = Outcome("tool1", "error", "cause 1", "other")
    assert told(advice.streaks, other_arguments).streaks.failures == 3


def test_a_timeout_counts_twice() -> None:
    late = Outcome("slow", "timeout", "no answer in 60 s", "1")
    assert told(Streaks(), error(1), late).notes != ()
    assert told(Streaks(), late).streaks.failures == 2


def test_failures_of_one_parallel_batch_never_end_a_run_untold() -> None:
    batch = [error(n) for n in range(8)]
    advice = told(Streaks(), batch)
    assert advice.stop is None and len(advice.notes) == 1
    assert told(advice.streaks, error("again")).stop == "needs_human"


def test_causes_are_bounded() -> None:
    long = [Outcome(f"t{n}", "error", "x\ny " * 200, str(n)) for n in range(7)]
    errors = told(Streaks(), long).streaks.errors
    assert len(errors) == ERRORS_MAX
    assert all(len(line) == ERROR_CHARS_MAX and "\n" not in line for line in errors)


def test_refusals_by_the_policy_are_a_streak_of_their_own() -> None:
    denied = Outcome("pay", "denied", "forbidden", "1")
    advice = told(Streaks(), error(1), denied, denied)
    assert advice.streaks.failures == 1
    assert "forbidden" in advice.notes[0]
    assert told(advice.streaks, denied).stop == "policy_blocked"
    assert told(advice.streaks, Outcome("read", "ok"), denied).stop is None


def test_forbidden_calls_of_one_batch_never_end_a_run_untold() -> None:
    batch = [Outcome("pay", "denied", "forbidden", str(n)) for n in range(4)]
    advice = told(Streaks(), batch)
    assert advice.stop is None and advice.notes
    assert told(advice.streaks, batch[0]).stop == "policy_blocked"


def test_a_tool_that_failed_five_times_in_a_row_is_not_called_again() -> None:
    other = Outcome("other", "ok")
    broken = [error(n, "search") for n in range(BREAKER_FAILURES)]
    turns: list[Outcome] = [each for failure in broken for each in (failure, other)]
    assert not told(Streaks(), *turns[:-2]).streaks.is_open("search")
    advice = told(Streaks(), *turns)
    assert advice.streaks.is_open("search") and not advice.streaks.is_open("other")
    last = told(told(Streaks(), *turns[:-2]).streaks, broken[-1])
    assert "search has failed 5 times" in last.notes[0]
    assert advice.streaks.renewed().is_open("search"), "a person's word mends no tool"
    assert "search" in open_text("search")


def test_one_success_closes_the_count_of_a_tool() -> None:
    streaks = Streaks(tools={"search": BREAKER_FAILURES - 1})
    streaks = told(streaks, Outcome("search", "ok"), error(1, "search")).streaks
    assert streaks.tools == {"search": 1}


def test_an_agent_that_cannot_do_without_a_broken_tool_is_stopped() -> None:
    refused = Outcome("search", "open")
    start = Streaks(tools={"search": BREAKER_FAILURES})
    advice = told(start, refused, refused, refused)
    assert advice.stop == "tool_failure"
    assert "search" in advice.detail
    assert told(start, [refused] * 4).stop is None
    assert told(start, refused, refused, Outcome("read", "ok"), refused).stop is None


@pytest.mark.parametrize(
    ("decision", "status", "error_type", "kind"),
    [
        ("execute", "ok", "", "ok"),
        ("execute", "error", "ValueError", "error"),
        ("execute", "timeout", "", "timeout"),
        ("execute", "cancelled", "", "neutral"),
        ("invalid", "refused", "invalid", "invalid"),
        ("denied", "refused", "denied", "denied"),
        ("suppressed", "refused", "suppressed", "neutral"),
        ("needs_approval", "refused", "needs_approval", "neutral"),
        ("truncated", "refused", "truncated", "neutral"),
        ("suppressed", "refused", OPEN, "open"),
    ],
)
def test_how_a_call_ended_says_which_streak_it_is_of(
    decision: Decision, status: Any, error_type: str, kind: OutcomeKind
) -> None:
    call = ToolCall(id="1", name="t", input={}, args_hash="h", decision=decision)
    content = [{"type": "text", "text": "why"}, {"type": "image", "source": {}}]
    result = ToolResult(id="1", name="t", status=status, content=content, error_type=error_type)
    assert outcome(call, result) == Outcome("t", kind, "" if kind == "ok" else "why", "h")


def test_wrong_arguments_are_the_models_failure_and_not_the_tools() -> None:
    wrong = [Outcome("search", "invalid", f"bad {n}", str(n)) for n in range(FAILURES_MAX)]
    advice = told(Streaks(), *wrong)
    assert advice.stop == "needs_human"
    assert not advice.streaks.tools


# ------------------------------------------------------------------ answers


def answered(streaks: Streaks, stop_reason: str = "end_turn", has: str = "") -> Advice:
    return after_answer(
        streaks, stop_reason=stop_reason, has_text=has == "text", has_calls=has == "calls"
    )


def test_an_empty_answer_is_nudged_once_and_the_second_in_a_row_ends_the_run() -> None:
    first = answered(Streaks())
    assert first.stop is None and first.notes
    assert answered(first.streaks).stop == "empty_turn"
    for what in ("text", "calls"):
        between = answered(first.streaks, has=what)
        assert between.notes == ()
        assert answered(between.streaks).stop is None


def test_a_cut_off_answer_gets_more_room_once() -> None:
    first = answered(Streaks(), "max_tokens", "calls")
    assert first.streaks.is_cut and "cut off" in first.notes[0]
    assert answered(first.streaks, "max_tokens", "text").stop == "output_truncated"
    between = answered(first.streaks, "end_turn", "text")
    assert not between.streaks.is_cut
    assert answered(between.streaks, "max_tokens", "text").stop is None


def test_a_paused_answer_goes_on_without_a_word_and_not_for_ever() -> None:
    advice = Advice(streaks=Streaks())
    for _ in range(PAUSES_MAX):
        advice = answered(advice.streaks, "pause_turn")
        assert (advice.stop, advice.notes) == (None, ())
        assert advice.streaks.is_paused
    assert answered(advice.streaks, "pause_turn", "text").stop == "failed"
    done = answered(advice.streaks, "end_turn", "text").streaks
    assert not done.is_paused


def test_a_wrong_result_is_told_three_times_and_then_ends_the_run_with_the_reason() -> None:
    advice = Advice(streaks=Streaks())
    for n in range(OUTPUT_RETRIES_MAX):
        advice = after_check(advice.streaks, f"field {n} is missing")
        assert advice.notes == (f"field {n} is missing",)
    last = after_check(advice.streaks, "total is negative")
    assert last.stop == "failed"
    assert "total is negative" in last.detail
    assert after_check(advice.streaks, "").streaks == Streaks()


# ------------------------------------------------------------------ properties

outcomes = st.lists(
    st.builds(
        Outcome,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["ok", "error", "timeout", "invalid", "denied", "open", "neutral"]),
        st.sampled_from(["x", "y"]),
        st.sampled_from("12345678"),
    ),
    max_size=5,
)


@given(st.lists(outcomes, max_size=8))
def test_streaks_are_bounded_survive_json_and_end_with_a_success(
    turns: list[list[Outcome]],
) -> None:
    streaks = Streaks()
    for turn in turns:
        advice = after_tools(streaks, turn)
        assert advice.stop is None or not advice.notes
        assert (advice.stop is None) == (advice.detail == "")
        streaks = advice.streaks
        assert msgspec.json.decode(msgspec.json.encode(streaks), type=Streaks) == streaks
        assert len(streaks.failed) <= FAILURES_MAX
    good = after_tools(streaks, [Outcome("a", "ok"), Outcome("b", "ok")])
    assert good.streaks == Streaks()
    assert good.stop is None
