"""Replay from every saved state: the same way to the same end, and nothing runs twice.

Method: runs that are cut after each stored batch; agents that do differently when repeated.
"""

from __future__ import annotations

from typing import Any

from tests.agent.evals.stages import DONE, OK, agent, calls, reads, run

from treadle.worker.agent import Hooks
from treadle.worker.agent.core.calls import ToolCall, ToolResult
from treadle.worker.agent.core.entries import Entry
from treadle.worker.agent.evals import running


def test_a_run_with_parallel_calls_goes_the_same_way_from_every_saved_state() -> None:
    result = run(
        mocked_tools={"read_order": [{"status": "ok", "output": n} for n in range(9)]},
        model=[
            {"calls": [{"tool": "read_order", "args": {"order_id": f"O-{n}"}} for n in range(3)]},
            reads("O-4"),
            DONE,
        ],
    )
    assert result.passed, result.failures
    assert result.replays_ok == result.replays
    # Opened; each of 3 turns: the answer; 4 reads; 2 ends of a turn; the last result, the stop.
    assert result.replays == 11


def test_a_call_with_an_effect_that_was_cut_off_runs_only_on_a_persons_word(
    monkeypatch: Any,
) -> None:
    asked: list[str] = []

    def go_on(call: ToolCall) -> Any:
        reply = original(call)
        if reply is not None:
            asked.append(call.name)
        return reply

    original = running._go_on  # pyright: ignore[reportPrivateUsage] -- the seam under test
    monkeypatch.setattr(running, "_go_on", go_on)
    result = run(
        mocked_tools={"refunds_issue_refund": [{"status": "ok", "output": "paid"}]},
        model=[calls("refunds_issue_refund", order_id="O-1", cents=5), DONE],
    )
    assert result.passed, result.failures
    assert asked == ["refunds_issue_refund"], "once: for the state after its start was saved"


def test_retries_failures_and_people_are_repeated_as_they_were() -> None:
    result = run(
        mocked_tools={
            "read_order": [
                {"status": "retryable_error", "reason": "busy"},
                OK,
                {"status": "error"},
            ],
            "close_account": [{"status": "ok", "output": "closed"}],
        },
        model=[
            {"error": "overloaded"},
            {"calls": [*reads()["calls"], *calls("close_account", account="A")["calls"]]},
            reads("O-2"),
            calls("ask_human", question="Enough?"),
            DONE,
        ],
        replies={"close_account": "approve", "ask_human": {"verdict": "answer", "text": "yes"}},
    )
    assert result.passed, result.failures
    assert result.replays_ok == result.replays > 10


def test_an_agent_that_keeps_its_state_in_the_process_fails_its_replays() -> None:
    seen: list[str] = []

    def only_once(call: ToolCall) -> Any:
        seen.append(call.id)
        return None if len(seen) == 1 else {"order_id": f"O-{len(seen)}"}

    result = run(
        agent(hooks=Hooks(before_tool_call=only_once)),
        mocked_tools={"read_order": [OK]},
        model=[reads(), DONE],
    )
    assert result.replays_ok < result.replays
    assert result.failures[0].startswith("replay from saved state 1: turn 1, call 1 (read_order):")
    assert 'runs_with {"order_id":"O-1"} -> {"order_id":"O-2"}' in result.failures[0]


def test_a_result_that_changes_on_the_way_back_is_noticed() -> None:
    count: list[int] = []

    def forgets(_: ToolCall, result: ToolResult) -> ToolResult | None:
        count.append(1)
        return None if len(count) == 1 else _failed(result)

    result = run(
        agent(hooks=Hooks(after_tool_call=forgets)),
        mocked_tools={"read_order": [OK]},
        model=[reads(), DONE],
    )
    assert "status ok -> error" in result.failures[0]


def _failed(result: ToolResult) -> ToolResult:
    return ToolResult(id=result.id, name=result.name, status="error", content="forgotten")


def test_a_call_that_runs_again_although_its_result_was_saved_is_noticed() -> None:
    result = run(mocked_tools={"read_order": [OK]}, model=[reads(), DONE], replay=False)
    world = running.MockedWorld({})
    world.calls.append("call_1_1")
    entries: list[Entry] = result.entries
    problem = running._problem(entries, entries, entries, world)  # pyright: ignore[reportPrivateUsage]
    assert problem == "calls ran again whose results were saved: call_1_1"


def test_repetitions_can_be_left_out() -> None:
    result = run(mocked_tools={"read_order": [OK]}, model=[reads(), DONE], replay=False)
    assert (result.passed, result.replays) == (True, 0)
