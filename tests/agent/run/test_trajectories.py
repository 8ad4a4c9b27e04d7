"""Whole runs against the fake API, by the trajectory: what ran, what did not, and why it ended.

The model is scripted to propose; each test says what software makes of the proposal.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pydantic
import pytest
from tests.agent.run.stage import Log, Stage, play

from treadle.worker.agent.core.budget import Budget
from treadle.worker.agent.core.entries import Answered, Judged, Settled, Stopped
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool
from treadle.worker.agent.tools.errors import ToolRejected
from treadle.worker.agent.tools.policy import Policy


class Recommendation(pydantic.BaseModel):
    sufficient: bool
    why: str


def shop(log: Log) -> list[Any]:
    @tool(idempotent=True)
    async def read_order(order_id: str) -> dict[str, str]:
        """Read one order."""
        log(("read_order", order_id))
        return {"order": order_id, "status": "late"}

    @tool
    async def issue_refund(order_id: str) -> str:
        """Pay money back."""
        log(("issue_refund", order_id))
        return "paid"

    return [read_order, issue_refund]


def test_a_task_that_can_be_done_completes_within_its_budget() -> None:
    log = Log()
    played = play(
        [
            turn(tool_use("read_order", {"order_id": "O-1"})),
            turn(tool_use("final_output", {"sufficient": True, "why": "late"})),
        ],
        tools=shop(log),
        output_type=Recommendation,
        budget=Budget(max_steps=3, max_tool_calls=5),
    )
    assert played.reason == "completed"
    assert played.result.output == Recommendation(sufficient=True, why="late")
    assert played.result.used.steps == 2
    assert log.lines == [("read_order", "O-1")]


def test_every_iteration_records_proposal_decision_result_counters_and_the_stop() -> None:
    played = play(
        [turn(tool_use("read_order", {"order_id": "O-1"})), turn(text("late"))], tools=shop(Log())
    )
    entries = played.stage.entries
    answered, judged, settled, stopped = (
        next(each for each in entries if isinstance(each, kind))
        for kind in (Answered, Judged, Settled, Stopped)
    )
    assert answered.content[0]["name"] == "read_order"
    assert judged.calls[0].decision == "execute"
    assert settled.result.status == "ok"
    assert stopped.reason == "completed"
    assert [
        name for name in played.stage.names if name.startswith(("agent.call", "agent.tool"))
    ] == ["agent.call.judged", "agent.tool.started", "agent.tool.ended"]
    assert "agent_run.completed" in played.stage.names
    assert played.result.state.versions == played.agent.spec.versions


def test_a_run_stops_at_its_bound_on_steps_and_the_next_proposal_does_not_run() -> None:
    log = Log()
    played = play(
        [
            turn(tool_use("read_order", {"order_id": "O-1"})),
            turn(tool_use("read_order", {"order_id": "O-2"})),
        ],
        tools=shop(log),
        budget=Budget(max_steps=1),
        fake={"allow_exhausted": True},
    )
    assert played.reason == "max_steps"
    assert log.lines == [("read_order", "O-1")]


def test_a_run_stops_at_its_bound_on_tool_calls() -> None:
    log = Log()
    played = play(
        [turn(tool_use("read_order", {"order_id": f"O-{n}"})) for n in range(2)]
        + [turn(text("What I have: late."))],
        tools=shop(log),
        budget=Budget(max_tool_calls=2),
    )
    assert played.reason == "max_tool_calls"
    assert played.result.output == "What I have: late."
    assert len(log.lines) == 2


def test_a_result_that_cannot_be_shown_is_an_error_for_the_model_and_the_run_goes_on() -> None:
    @tool(idempotent=True)
    def malformed() -> Any:
        """Return what is no data."""
        return object()

    played = play(
        [turn(tool_use("malformed", {})), turn(text("I cannot know."))], tools=[malformed]
    )
    assert played.reason == "completed"
    assert "cannot be shown" in played.said(1)


def test_a_tool_that_fails_again_and_again_ends_with_a_person() -> None:
    @tool(idempotent=True, max_attempts=1)
    def read_status(order_id: str) -> str:
        """Read the status."""
        raise RuntimeError(f"upstream_timeout for {order_id}")

    played = play(
        lambda request: turn(tool_use("read_status", {"order_id": f"O-{request.index}"})),
        tools=[read_status, *shop(Log())],
        budget=Budget(max_steps=12),
    )
    assert played.reason == "needs_human"
    assert played.result.used.tool_calls <= 6
    assert "read_status" in played.result.detail


def test_six_different_failures_in_a_row_end_with_a_person_who_reads_them() -> None:
    @tool
    def a(n: int) -> str:
        """Do a."""
        raise RuntimeError(f"broken a{n}")

    @tool
    def b(n: int) -> str:
        """Do b."""
        raise RuntimeError(f"broken b{n}")

    played = play(
        lambda request: turn(tool_use("ab"[request.index % 2], {"n": request.index})),
        tools=[a, b],
    )
    assert played.reason == "needs_human"
    assert "broken b5" in played.result.detail
    assert len(played.requests) == 6
    assert "Nothing has worked for 3 tries" in played.said(3)


def test_a_broken_tool_that_the_agent_insists_on_is_not_called_any_more_and_ends_the_run() -> None:
    log = Log()

    @tool(max_attempts=1)
    def broken(n: int) -> str:
        """Always fail."""
        log(n)
        raise RuntimeError("the disk is full")

    def insisting(request: Any) -> Any:
        calls = (5, 2, 1)[request.index]
        return turn(*(tool_use("broken", {"n": 10 * request.index + n}) for n in range(calls)))

    played = play(insisting, tools=[broken])
    assert played.reason == "tool_failure"
    assert "broken failed 5 times in a row" in played.result.detail
    assert log.lines == [0, 1, 2, 3, 4]
    assert "is not called again in this run" in played.said(1)


@pytest.mark.parametrize("how", ["forbidden", "not allowed", "no such tool"])
def test_a_forbidden_action_never_runs_and_insisting_on_it_blocks_the_run(how: str) -> None:
    log = Log()
    name = "update_policy" if how == "no such tool" else "issue_refund"
    policy = (
        Policy(allowed={"read_order"})
        if how == "not allowed"
        else Policy(forbidden={"issue_refund", "update_policy"})
    )
    played = play(
        lambda request: turn(tool_use(name, {"order_id": f"O-{request.index}"})),
        tools=shop(log),
        policy=policy,
    )
    assert played.reason == "policy_blocked"
    assert log.lines == []
    assert len(played.requests) == 3
    assert "forbidden" in played.said(1) or "allowed" in played.said(1)


def test_an_agent_told_that_an_action_is_forbidden_may_go_on_without_it() -> None:
    log = Log()
    played = play(
        [turn(tool_use("issue_refund", {"order_id": "O-1"})), turn(text("A person has to pay."))],
        tools=shop(log),
        policy=Policy(forbidden={"issue_refund"}),
    )
    assert played.reason == "completed"
    assert log.lines == []


def test_a_list_of_allowed_actions_leaves_the_runtime_its_own_tools() -> None:
    played = play(
        [
            turn(tool_use("update_run_journal", {"objective": "find out"})),
            turn(tool_use("final_output", {"sufficient": False, "why": "nothing known"})),
        ],
        tools=shop(Log()),
        output_type=Recommendation,
        policy=Policy(allowed={"read_order"}),
    )
    assert played.reason == "completed"
    assert played.result.state.journal.objective == "find out"


def test_claiming_completion_without_the_evidence_does_not_complete() -> None:
    def has_read_the_order(proposed: Recommendation, state: Any) -> str | None:
        return None if state.executed.get("read_order") else "the order has not been read"

    log = Log()
    claim = tool_use("final_output", {"sufficient": True, "why": "I am sure"})
    played = play(
        [turn(claim), turn(tool_use("read_order", {"order_id": "O-1"})), turn(claim)],
        tools=shop(log),
        output_type=Recommendation,
        evidence=[has_read_the_order],
    )
    assert played.reason == "completed"
    assert "the order has not been read" in played.said(1)
    assert log.lines == [("read_order", "O-1")]


def test_claiming_completion_for_ever_fails_the_run_with_the_last_problem() -> None:
    played = play(
        lambda _: turn(tool_use("final_output", {"sufficient": True, "why": "sure"})),
        output_type=Recommendation,
        evidence=[lambda proposed, state: "no evidence at all"],
    )
    assert played.reason == "failed"
    assert "no evidence at all" in played.result.detail
    assert 'The last one was: {"sufficient":true,"why":"sure"}' in played.result.detail
    assert len(played.requests) == 4
    assert played.result.output is None


@pytest.mark.parametrize("output_type", [Recommendation, str])
def test_evidence_that_never_accepts_keeps_the_call_that_ran_and_its_result(
    output_type: Any,
) -> None:
    log = Log()
    claim = turn(tool_use("final_output", {"sufficient": True, "why": "sure"}))
    if output_type is str:
        claim = turn(text("It is sufficient."))
    played = play(
        lambda request: (
            claim if request.index else turn(tool_use("issue_refund", {"order_id": "O-1"}, "paid"))
        ),
        tools=shop(log),
        output_type=output_type,
        evidence=[lambda proposed, state: "a person must see it"],
    )
    assert played.reason == "failed"
    assert "not accepted 4 times" in played.result.detail
    assert "a person must see it" in played.result.detail
    assert "sure" in played.result.detail or "It is sufficient." in played.result.detail
    assert played.result.output is None
    assert log.lines == [("issue_refund", "O-1")]
    assert len(played.requests) == 5
    # What was done stays in every later request, and in what a next run would go on from.
    conversations = [request.messages for request in played.requests[1:]]
    for messages in [*conversations, list(played.result.state.messages)]:
        content = [each for message in messages for each in message["content"]]
        calls = [
            b["id"] for b in content if b["type"] == "tool_use" and b["name"] != "final_output"
        ]
        results = [b for b in content if b["type"] == "tool_result" and b["tool_use_id"] == "paid"]
        assert calls == ["paid"] and len(results) == 1
        assert results[0]["content"] == "paid" and not results[0].get("is_error")


@pytest.mark.parametrize("bad", [{"sufficient": "perhaps", "why": "x" * 5_000}, {"why": 7}])
def test_a_result_that_never_fits_its_type_is_in_the_failure_within_a_bound(bad: Any) -> None:
    played = play(
        lambda _: turn(tool_use("final_output", bad)),
        output_type=Recommendation,
    )
    assert played.reason == "failed"
    assert len(played.requests) == 4
    assert "sufficient" in played.said(1), "the model is told which field is wrong"
    detail = played.result.detail
    assert "The last one was: {" in detail and '"why":' in detail
    assert len(detail) < 3_000


def test_a_run_goes_on_from_a_saved_state_without_repeating_anything() -> None:
    """The state goes through JSON, as a store would keep it."""
    import msgspec

    from treadle.worker.agent.core.state import State

    log = Log()

    async def go() -> None:
        async with Stage([turn(tool_use("read_order", {"order_id": "O-1"}))]) as stage:
            agent = stage.agent(tools=shop(log), budget=Budget(max_steps=1), on_limit="fail")
            first = await stage.run(agent)
            assert first.stop_reason == "max_steps"
            saved = msgspec.json.decode(msgspec.json.encode(first.state), type=State)
            assert saved == first.state
            stage.fake.extend(turn(text("late")))
            longer = stage.agent(tools=shop(log), budget=Budget(max_steps=5))
            second = await stage.run(longer, "Go on.", state=saved)
            assert second.stop_reason == "completed"
            assert second.used.steps == 2
            assert stage.fake.requests[1].messages[:2] != []
        assert log.lines == [("read_order", "O-1")]

    asyncio.run(go())


def test_a_tool_that_rejects_says_why_and_the_model_does_better() -> None:
    seen: list[int] = []

    @tool
    def pay(cents: int) -> str:
        """Pay."""
        seen.append(cents)
        if cents > 100:
            raise ToolRejected("at most 100 cents")
        return "paid"

    played = play(
        [
            turn(tool_use("pay", {"cents": 500})),
            turn(tool_use("pay", {"cents": 100})),
            turn(text("Paid.")),
        ],
        tools=[pay],
    )
    assert played.reason == "completed"
    assert "at most 100 cents" in played.said(1)
    assert seen == [500, 100]


def test_calls_with_wrong_arguments_or_names_do_not_run_and_say_what_is_wrong() -> None:
    log = Log()
    played = play(
        [
            turn(tool_use("read_order", {}), tool_use("read_ordr", {"order_id": "O-1"})),
            turn(text("Sorry.")),
        ],
        tools=shop(log),
    )
    assert played.reason == "completed"
    assert "order_id" in played.said(1)
    assert "Did you mean 'read_order'" in played.said(1)
    assert log.lines == []


def test_tools_that_were_not_offered_do_not_exist() -> None:
    played = play(
        [
            turn(tool_use("ask_human", {"question": "?"}), tool_use("get_run_journal", {})),
            turn(text("Then not.")),
        ],
        journal=False,
    )
    assert played.reason == "completed"
    assert played.said(1).count("There is no tool") == 2
    assert played.result.used.tool_calls == 0


def test_the_idempotency_key_of_a_call_is_of_this_run_and_this_call() -> None:
    from treadle.worker.agent.tools.context import ToolContext

    keys: list[str] = []

    @tool
    def pay(ctx: ToolContext[Any], cents: int) -> str:
        """Pay."""
        keys.append(ctx.idempotency_key)
        return "paid"

    turns = [turn(tool_use("pay", {"cents": 1}), tool_use("pay", {"cents": 2})), turn(text("ok"))]
    play(turns, tools=[pay], run={"id": "run-a"})
    play(turns, tools=[pay], run={"id": "run-b"})
    assert len(set(keys)) == 4
    assert keys[0].startswith("run-a:") and keys[2].startswith("run-b:")


def test_a_denied_call_is_no_executed_call() -> None:
    played = play(
        [turn(tool_use("issue_refund", {"order_id": "O-1"})), turn(text("no"))],
        tools=shop(Log()),
        policy=Policy(forbidden={"issue_refund"}),
    )
    assert played.result.used.tool_calls == 0
