"""An answer settles what it is about: of the call it names, and of the kind that was asked.
Method: runs that wait against the strict fake, gone on with in another process each time."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent.run.stage import Log
from tests.agent.run.test_people import Waiting, pay, waiting

from treadle.sdk.asks import Reply
from treadle.worker.agent.core.entries import Refused
from treadle.worker.agent.testing import tool_use


@pytest.mark.parametrize(
    ("asked", "reply", "problem"),
    [
        ("question", {"verdict": "approve"}, "approves a question"),
        ("question", {"verdict": "answer", "text": "blue", "input": {"to": "eve"}}, "other arg"),
        ("approval", {"verdict": "reject", "input": {"to": "eve", "cents": 1}}, "other arg"),
    ],
)
def test_an_answer_of_another_kind_goes_back_and_the_call_stays_open(
    asked: str, reply: dict[str, Any], problem: str
) -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        (call,) = run.result.waiting_for
        wrong = Reply(call_id=call.id, args_hash=call.args_hash, **reply)
        result = await run.go_on(wrong)
        assert result.stop_reason == "needs_human"
        assert [each.id for each in result.waiting_for] == [call.id]
        (refused,) = [each for each in run.stage.entries if isinstance(each, Refused)]
        assert refused.call_id == call.id and problem in refused.problem
        assert log.lines == [] and len(run.stage.fake.requests) == 1
        right = "answer" if asked == "question" else "approve"
        fitting = Reply(call_id=call.id, verdict=right, args_hash=call.args_hash, text="blue")
        result = await run.go_on(fitting)
        assert result.stop_reason == "completed"
        assert len(log.lines) == (asked == "approval")

    call = pay("ann") if asked == "approval" else tool_use("ask_human", {"question": "Which?"})
    waiting(test, call, log=log, ask_human=True)


def test_answers_to_calls_of_two_kinds_are_told_apart_by_kind_and_id() -> None:
    log = Log()

    async def test(run: Waiting) -> None:
        question = next(call for call in run.result.waiting_for if call.name == "ask_human")
        approval = run.calls["ann"]
        result = await run.go_on(
            Reply(call_id=question.id, verdict="approve", args_hash=approval.args_hash),
            Reply(call_id=approval.id, verdict="approve", args_hash=question.args_hash),
        )
        assert {call.id for call in result.waiting_for} == {question.id, approval.id}
        assert log.lines == []
        result = await run.go_on(
            Reply(call_id=question.id, verdict="answer", text="yes"), run.approve("ann")
        )
        assert result.stop_reason == "completed"
        results = run.stage.fake.requests[1].tool_results
        assert results == {question.id: "yes", approval.id: "paid 100 to ann"}

    calls = (tool_use("ask_human", {"question": "May I?"}), pay("ann"))
    waiting(test, *calls, log=log, ask_human=True)
