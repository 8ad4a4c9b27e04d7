"""Several conversations in one journal: what the fold keeps of those before the last, and what not.

Method: entries as data, folded; every cut of the journal is a worker that takes over there.
"""

from __future__ import annotations

import msgspec
import pytest

from treadle.worker.agent.core.budget import Counters
from treadle.worker.agent.core.calls import ToolResult
from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.core.entries import (
    Answered,
    Entry,
    Heard,
    Noted,
    Opened,
    Settled,
    Stopped,
    TurnEnded,
)
from treadle.worker.agent.core.spec import Versions
from treadle.worker.agent.core.state import State, fold, tool_uses


def said(text: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text}]


def opened(phase: str) -> Opened:
    carried = msgspec.Raw(msgspec.json.encode({"from": phase}))
    versions = Versions(prompt=phase)
    return Opened(goal=said(f"Go, {phase}."), versions=versions, phase=phase, carried=carried)


def turn(n: int) -> list[Entry]:
    use = {"type": "tool_use", "id": "call_0", "name": "act", "input": {"n": n}}
    usage = Usage(input_tokens=10, output_tokens=1)
    return [
        Answered(purpose="turn", content=[use], stop_reason="tool_use", usage=usage),
        Settled(result=ToolResult(id="call_0", name="act", status="ok", content="done")),
        TurnEnded(iteration=n),
    ]


FIRST: list[Entry] = [
    opened("one"),
    Heard(source="steering", content=said("Mind."), seen=7),
    Noted(field="objective", value="x"),
    *turn(0),
    Stopped(reason="completed", text="ended"),
]
SECOND: list[Entry] = [opened("two"), *turn(1)]


def test_a_conversation_begins_with_nothing_of_the_one_before_but_its_sums() -> None:
    state = fold(State(), [*FIRST, SECOND[0]])
    assert [message["content"] for message in state.messages] == [said("Go, two.")]
    assert (state.phase, state.versions.prompt) == ("two", "two")
    assert msgspec.json.decode(state.carried) == {"from": "two"}
    assert state.stopped is None and state.answer is None
    assert (state.turn, state.ended_iteration, state.executed) == (0, -1, {})
    assert state.used == Counters() and state.journal == State().journal
    # Not heard twice, not counted twice.
    assert state.seen == {"steer": 7}
    assert state.total == fold(State(), FIRST).total == state.before


def test_the_sums_grow_over_conversations_and_a_budget_sees_its_own() -> None:
    state = fold(State(), [*FIRST, *SECOND])
    assert (state.used.steps, state.used.tool_calls) == (1, 1)
    assert (state.total.steps, state.total.tool_calls) == (2, 2)
    assert state.total.usage.input_tokens == 20


def test_the_id_of_a_call_is_not_used_again_by_a_later_conversation() -> None:
    journal = [*FIRST, *SECOND[:2]]
    state = fold(State(), [*journal])
    assert state.answer is not None
    [use] = tool_uses(state.answer.content)
    assert use["id"] == "call_0_1_0"
    third = fold(state, [Stopped(reason="completed"), opened("three"), turn(2)[0]])
    assert third.answer is not None
    [use] = tool_uses(third.answer.content)
    assert use["id"] == "call_0_2_0"
    assert len(third.call_ids) == 3


@pytest.mark.parametrize("cut", range(len(FIRST + SECOND) + 1))
def test_whoever_takes_over_at_any_point_comes_to_the_same_state(cut: int) -> None:
    journal = FIRST + SECOND
    stored = msgspec.json.encode(journal[:cut])
    before = fold(State(), msgspec.json.decode(stored, type=list[Entry]))
    assert fold(before, journal[cut:]) == fold(State(), journal)


def test_a_journal_of_the_last_version_is_one_conversation() -> None:
    raw = b'{"kind":"opened","at_ms":1,"goal":[{"type":"text","text":"Go."}],"versions":{}}'
    state = fold(State(), [msgspec.json.decode(raw, type=Entry)])
    assert (state.phase, bytes(state.carried), state.before) == ("", b"null", Counters())
    assert msgspec.json.encode(msgspec.json.decode(raw, type=Entry)) == raw
