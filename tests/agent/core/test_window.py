"""What counts as filling the window: the last answer's own usage, and what was added since."""

from __future__ import annotations

from typing import Any

from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.core.entries import Answered, Entry, Opened, TurnEnded, Wasted
from treadle.worker.agent.core.request import context_tokens
from treadle.worker.agent.core.spec import Versions
from treadle.worker.agent.core.state import State, fold
from treadle.worker.agent.core.tokens import of_chars

BIG = Usage(input_tokens=100, cache_read_tokens=60_000, cache_write_tokens=2_000, output_tokens=50)
WHOLE = 62_150


def answered(usage: Usage, **more: Any) -> Answered:
    content = [{"type": "text", "text": "so far"}]
    given = {"purpose": "turn", "stop_reason": "end_turn", "content": content} | more
    return Answered(usage=usage, **given)


def window(*entries: Entry) -> int:
    """Return what fills the window after the entries, without what the estimate adds."""
    opened = Opened(goal=[{"type": "text", "text": "Go."}], versions=Versions())
    state = fold(State(), [opened, *entries])
    return context_tokens(state) - of_chars(state.added_chars)


def test_turns_that_read_the_cache_again_and_again_fill_the_window_once() -> None:
    turns = [entry for _ in range(6) for entry in (answered(BIG), TurnEnded())]
    assert window(*turns) == WHOLE
    assert window(*turns, answered(Usage(input_tokens=900, output_tokens=100))) == 1_000


def test_the_segments_of_a_paused_answer_fill_the_window_once() -> None:
    paused = answered(BIG, stop_reason="pause_turn")
    assert window(paused, TurnEnded(), paused, TurnEnded(), answered(BIG)) == WHOLE


def test_what_failed_calls_have_used_is_paid_for_and_fills_nothing() -> None:
    entries = [answered(BIG, wasted=BIG), TurnEnded(), Wasted(usage=BIG)]
    assert window(*entries) == WHOLE
    state = fold(State(), entries)
    assert state.used.usage == BIG + BIG + BIG
