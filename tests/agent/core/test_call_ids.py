"""Ids of calls, over what a fold makes of entries: some servers number them anew in each answer."""

from __future__ import annotations

from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.core.entries import (
    Answered,
    Compacted,
    Entry,
    Judged,
    Opened,
    Settled,
    TurnEnded,
)
from treadle.worker.agent.core.spec import Versions
from treadle.worker.agent.core.state import State, fold, tool_uses


def _turn(id: str, n: int) -> list[Entry]:
    use = {"type": "tool_use", "id": id, "name": "pay", "input": {"n": n}}
    call = ToolCall(id=id, name="pay", input={"n": n}, args_hash=str(n))
    result = ToolResult(id=id, name="pay", status="ok", content="paid")
    return [
        Answered(purpose="turn", content=[use], stop_reason="tool_use", usage=Usage()),
        Judged(calls=(call,)),
        Settled(result=result),
        TurnEnded(),
    ]


def test_an_id_is_not_used_again_after_its_call_was_compacted_away() -> None:
    opened = Opened(goal=[{"type": "text", "text": "Pay."}], versions=Versions())
    state = fold(State(), [opened, *_turn("call_0", 1)])
    block = [{"type": "text", "text": "It was paid."}]
    gone = Compacted(
        stage="compact",
        block=block,
        dropped=len(state.messages),
        tokens_before=2,
        tokens_after=1,
    )
    state = fold(state, [gone, *_turn("call_0", 2)[:1]])
    assert state.answer is not None
    [use] = tool_uses(state.answer.content)
    assert use["id"] != "call_0"
    assert use["input"] == {"n": 2}
