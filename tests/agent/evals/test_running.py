"""Running a case: the whole way is checked, in a world where no tool is really called.

Method: an agent whose tools note every real call, scripted models, and one live on a loopback.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from tests.agent.evals.stages import DONE, OK, agent, calls, case, reads, run

from treadle.worker.agent import Budget, Hooks, Policy, Price, PriceTable
from treadle.worker.agent.evals import CaseResult, run_case
from treadle.worker.agent.models.anthropic import AnthropicModel
from treadle.worker.agent.testing import FakeAnthropic, tool_use, turn


def test_a_run_that_goes_as_expected_passes() -> None:
    result = run(
        mocked_tools={"read_order": [OK]},
        model=[reads(), DONE],
        expected={
            "stop_reason": "completed",
            "max_tool_calls": 1,
            "forbidden_tools": ["refunds.issue_refund"],
            "requires_trace_events": [
                *("goal", "proposal", "validation", "tool_result", "check", "stop"),
                "agent_run.completed",
            ],
            "output": {"refund": True},
            "evidence": [{"tool": "read_order", "args": {"order_id": "O-1"}, "contains": "late"}],
        },
    )
    assert result.passed, result.failures
    assert result.replays == result.replays_ok > 3
    assert result.trajectory.output == {"refund": True, "reason": "late"}


def test_every_expectation_that_is_not_met_is_named() -> None:
    result = run(
        mocked_tools={"read_order": [OK], "refunds.issue_refund": [{"status": "ok"}]},
        model=[calls("refunds.issue_refund", order_id="O-1", cents=5), reads(), DONE],
        expected={
            "stop_reason": "needs_human",
            "max_tool_calls": 1,
            "forbidden_tools": ["refunds.issue_refund"],
            "requires_trace_events": ["compaction"],
            "output": {"refund": False, "amount": 5},
            "evidence": [{"tool": "read_order", "contains": "on time"}],
        },
    )
    assert result.failures == (
        "it stopped with completed, not needs_human",
        "2 tool calls ran, and 1 are allowed",
        "refunds.issue_refund is forbidden, and ran 1 time",
        "the trace has no compaction",
        "evidence is missing: no successful call of read_order whose result holds 'on time'",
        "the output has at refund true, not false",
        "the output lacks amount, which should be 5",
    )


def test_a_forbidden_tool_that_was_proposed_and_refused_is_no_fault() -> None:
    result = run(
        agent(policy=Policy(forbidden={"refunds_issue_refund"})),
        model=[calls("refunds.issue_refund", order_id="O-1", cents=5), DONE],
        expected={
            "stop_reason": "completed",
            "forbidden_tools": ["refunds.issue_refund"],
            "max_tool_calls": 0,
            "requires_trace_events": ["refusal"],
        },
    )
    assert result.passed, result.failures
    (denied, _) = result.trajectory.calls
    assert (denied.decision, denied.status, denied.ran) == ("denied", "refused", False)


def test_a_tool_without_mocked_results_is_not_called_and_fails_the_case() -> None:
    result = run(model=[reads(), DONE])
    assert "read_order was called, and has no mocked result" in result.failures
    assert result.trajectory.calls[0].status == "error"


def test_a_mocked_tool_that_the_agent_does_not_have_is_said_and_nothing_runs() -> None:
    result = run(mocked_tools={"read_ordre": [OK]}, model=[DONE], replies={"reed": "approve"})
    assert [failure.split(" (")[0] for failure in result.failures] == [
        "mocked_tools: the agent has no tool 'read_ordre'",
        "replies: the agent has no tool 'reed'. Correct the name",
    ]
    assert result.entries == []


def test_each_mocked_status_comes_to_the_model_as_the_real_thing_would() -> None:
    statuses: list[dict[str, Any]] = [
        {"status": "error", "reason": "no such order"},
        {"status": "timeout"},
        {"status": "malformed"},
        {"status": "malformed", "output": '{"late": tr'},
        {"status": "ok", "output": {"late": True}},
    ]
    pay = [calls("refunds_issue_refund", order_id="O-1", cents=cents) for cents in range(5)]
    result = run(mocked_tools={"refunds_issue_refund": statuses}, model=[*pay, DONE])
    assert result.passed, result.failures
    came = [(call.status, str(call.content)) for call in result.trajectory.calls[:-1]]
    assert [status for status, _ in came] == ["error", "timeout", "error", "ok", "ok"]
    assert "no such order" in came[0][1]
    assert "did not finish" in came[1][1]
    assert "cannot be shown" in came[2][1]
    assert came[3][1] == '{"late": tr'


def test_a_retryable_error_is_tried_again_without_any_real_waiting() -> None:
    began_s = time.monotonic()
    result = run(
        mocked_tools={"read_order": [{"status": "retryable_error", "reason": "busy"}] * 2 + [OK]},
        model=[reads(), DONE],
        expected={"stop_reason": "completed", "requires_trace_events": ["agent.tool.retry"]},
    )
    assert result.passed, result.failures
    assert result.used.tool_calls == 1, "three attempts are one call"
    assert time.monotonic() - began_s < 2.5, "the agent would have waited as long between attempts"


def test_the_last_result_of_a_tool_stays() -> None:
    down = [{"status": "retryable_error", "reason": "down"}]
    result = run(mocked_tools={"read_order": down}, model=[reads("O-1"), reads("O-2"), DONE])
    assert [call.status for call in result.trajectory.calls] == ["error", "error", "ok"]


def test_a_script_that_is_used_up_fails_the_run_and_says_so() -> None:
    result = run(mocked_tools={"read_order": [OK]}, model=[reads()])
    assert result.stop_reason == "failed"
    assert "script_exhausted: the script has 1 turn" in result.failures[0]


def test_turns_after_the_end_of_the_run_are_not_asked_for() -> None:
    result = run(
        agent(budget=Budget(max_steps=1)),
        mocked_tools={"read_order": [OK]},
        model=[reads(), DONE, reads("O-2")],
        expected={"stop_reason": "max_steps", "max_tool_calls": 1, "output": {"refund": True}},
    )
    assert result.passed, result.failures
    assert [turn.purpose for turn in result.trajectory.turns] == ["turn", "final"]


def test_a_claim_of_being_done_without_evidence_does_not_complete() -> None:
    def order_was_read(_: Any, state: Any) -> str | None:
        return None if state.executed.get("read_order") else "no order was read"

    result = run(
        agent(evidence=[order_was_read]),
        mocked_tools={"read_order": [OK]},
        model=[DONE, reads(), DONE],
        expected={"stop_reason": "completed", "evidence": ["read_order"], "max_tool_calls": 1},
    )
    assert result.passed, result.failures
    assert len(result.trajectory.turns) == 3


def test_a_scripted_person_answers_and_without_one_the_run_waits() -> None:
    script = [calls("close_account", account="A"), calls("ask_human", question="sure?"), DONE]
    mocks = {"close_account": [{"status": "ok", "output": "closed"}]}
    waits = run(mocked_tools=mocks, model=script, expected={"stop_reason": "needs_human"})
    assert waits.passed, waits.failures
    assert waits.trajectory.trace[-2:] == ("question", "stop")
    edit = {"verdict": "approve", "input": {"account": "B"}}
    goes_on = run(
        mocked_tools=mocks,
        model=script,
        replies={"close_account": edit, "ask_human": {"verdict": "answer", "text": "yes"}},
    )
    assert goes_on.passed, goes_on.failures
    closed, asked, _ = goes_on.trajectory.calls
    assert closed.runs_with == {"account": "B"} and closed.args == {"account": "A"}
    assert asked.content == "yes"


def test_a_scripted_result_is_given_in_the_way_of_the_agents_output_type() -> None:
    for kind, output in ((int, 5), (list[str], ["a"]), (str, "It is late.")):
        result = run(
            agent(output_type=kind),
            model=[{"output": output}],
            expected={"stop_reason": "completed", "output": output},
        )
        assert result.passed, result.failures
        assert result.trajectory.output == output
    part = run(agent(output_type=str), model=["It is late."], expected={"output": "late"})
    assert part.passed, "a text holds its parts"
    other = run(agent(output_type=str), model=["It is late."], expected={"output": "early"})
    assert other.failures == ("the output does not hold 'early': It is late.",)


def test_a_model_that_fails_in_passing_is_asked_again_at_once() -> None:
    began_s = time.monotonic()
    result = run(model=[{"error": "overloaded"}, {"error": "rate_limited"}, DONE])
    assert result.passed, result.failures
    assert time.monotonic() - began_s < 1.0
    final = run(
        model=[{"error": {"kind": "auth", "message": "no key"}}], expected={"stop_reason": "failed"}
    )
    assert final.passed and "no key" in final.trajectory.detail


def test_scripted_usage_is_counted_and_priced() -> None:
    prices = PriceTable({"claude-none": Price(input=1.0, output=2.0)})
    usage = {"input_tokens": 1_000, "output_tokens": 500}
    result = run(agent(prices=prices), model=[{**DONE, "usage": usage}])
    assert result.used.usage.context_tokens == 1_500
    assert result.used.cost_micro_usd == 2_000
    estimated = run(model=[DONE]).used.usage
    assert estimated.is_estimated and estimated.input_tokens > 100


def test_an_agent_whose_own_code_raises_fails_its_case_and_no_more() -> None:
    def hook(_: Any) -> None:
        raise RuntimeError("the hook is broken")

    result = run(
        agent(hooks=Hooks(before_tool_call=hook)),
        mocked_tools={"read_order": [OK]},
        model=[reads(), DONE],
    )
    assert "the run broke off: RuntimeError: the hook is broken" in result.failures


@pytest.mark.parametrize("script", [None, "live"])
def test_a_live_case_asks_the_agents_own_model_once_and_replays_without_it(script: Any) -> None:
    answers = [
        turn(tool_use("read_order", {"order_id": "O-1"})),
        turn(tool_use("final_output", {"refund": True})),
    ]
    fields: dict[str, Any] = {} if script is None else {"model": script}
    with FakeAnthropic(answers) as fake:

        async def live() -> CaseResult:
            model = AnthropicModel("claude-none", base_url=fake.base_url, api_key="k")
            try:
                subject = agent(model=model)
                return await run_case(subject, case(mocked_tools={"read_order": [OK]}, **fields))
            finally:
                await model.close()

        result = asyncio.run(live())
        assert len(fake.requests) == 2
    assert result.passed, result.failures
    assert result.replays_ok == result.replays > 3
