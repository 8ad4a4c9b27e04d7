"""The measures of a suite.

Method: cases of known outcome, each measure worked out by hand.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from tests.agent.evals.stages import DONE, OK, agent, calls, case, reads

from treadle.worker.agent import Policy
from treadle.worker.agent.evals import CaseResult, measure, run_suite


def test_each_measure_is_what_it_says() -> None:
    mocks: dict[str, Any] = {"read_order": [OK]}
    cases = [
        case(case_id="done", mocked_tools=mocks, model=[reads(), reads(), DONE]),
        case(
            case_id="denied",
            mocked_tools=mocks,
            model=[calls("refunds_issue_refund", order_id="O", cents=1), calls("reed"), DONE],
        ),
        case(
            case_id="asks",
            model=[calls("ask_human", question="?")],
            expected={"stop_reason": "needs_human"},
        ),
        case(
            case_id="should_ask",
            model=[DONE],
            expected={"stop_reason": "needs_human"},
        ),
        case(case_id="open", model=[DONE], expected={"max_tool_calls": 0}),
    ]
    heard: list[str] = []
    subject = agent(policy=Policy(forbidden={"refunds_issue_refund"}))
    suite = asyncio.run(
        run_suite(subject, cases, on_result=lambda each: heard.append(each.case.case_id))
    )
    found = suite.metrics
    assert heard == [each.case_id for each in cases]
    assert not suite.passed
    assert (found.cases, found.passed) == (5, 4)
    assert found.completion_rate == pytest.approx(4 / 5)
    assert found.correct_stop_rate == pytest.approx(3 / 4)
    assert found.escalation_accuracy == pytest.approx(3 / 4)
    # 3 + 3 + 1 + 1 + 1 calls are proposed: one denied and one unknown; one read is repeated.
    assert found.invalid_action_rate == pytest.approx(2 / 9)
    assert found.repeated_action_rate == pytest.approx(1 / 9)
    assert found.replay_success == 1.0
    assert found.tool_calls == 2
    assert found.tokens == sum(each.used.usage.context_tokens for each in suite.results) > 0
    assert found.latency_ms_max >= (found.latency_ms or 0) >= 0


def test_a_measure_of_nothing_is_none_and_not_zero() -> None:
    nothing: list[CaseResult] = []
    found = measure(nothing)
    assert found.cases == 0
    assert found.completion_rate is found.replay_success is found.invalid_action_rate is None
    assert found.latency_ms is None
