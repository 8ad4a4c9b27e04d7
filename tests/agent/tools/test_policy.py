"""The policy: the model proposes, this decides.
Method: pure calls with small policies, and rules that misbehave."""

from __future__ import annotations

from typing import Any

import pytest
from tests.agent.tools.stage import call

from treadle.worker.agent.core.calls import ToolCall
from treadle.worker.agent.tools.checking import check_call
from treadle.worker.agent.tools.declaring import check_tools, tool
from treadle.worker.agent.tools.policy import Ask, Deny, Policy


@tool(idempotent=True)
def read(n: int = 0) -> None: ...


@tool(requires_approval=lambda args: args["cents"] > 100)
def refund(cents: int) -> None: ...


@tool(read_only=True)
def look() -> None: ...


TOOLS = check_tools([read, refund, look])


def decisions(policy: Policy, *calls: ToolCall, **more: Any) -> list[str]:
    return [judged.decision for judged in policy.judge(calls, TOOLS, **more)]


def test_without_bounds_all_may_run() -> None:
    assert decisions(Policy(), call("read")) == ["execute"]


def test_a_forbidden_action_is_denied_even_if_it_is_allowed_or_no_tool() -> None:
    policy = Policy(allowed={"read"}, forbidden={"read", "change_payment_method"})
    unknown = check_call({"id": "1", "name": "change_payment_method", "input": {}}, TOOLS)
    assert unknown.decision == "invalid"
    assert decisions(policy, call("read"), unknown) == ["denied", "denied"]
    assert "forbidden" in policy.decide(call("read"))[1]


def test_only_allowed_actions_run() -> None:
    decision, reason = Policy(allowed={"read"}).decide(call("refund", cents=1))
    assert decision == "denied" and "read" in reason
    assert decisions(Policy(allowed=set()), call("read")) == ["denied"]


def test_the_calls_of_a_tool_are_bounded_inside_a_batch_too() -> None:
    policy = Policy(max_calls_per_tool={"read": 3})
    batch = [call("read", str(n), n=n) for n in range(5)]
    assert decisions(policy, *batch) == ["execute"] * 3 + ["over_budget"] * 2
    assert decisions(policy, *batch, used={"read": 2}) == ["execute"] + ["over_budget"] * 4


def test_an_invalid_call_keeps_its_reason_and_counts_for_nothing() -> None:
    policy = Policy(max_calls_per_tool={"read": 1})
    invalid = check_call({"id": "1", "name": "read", "input": {"n": "x"}}, TOOLS)
    judged = policy.judge([invalid, call("read")], TOOLS)
    assert [j.decision for j in judged] == ["invalid", "execute"]
    assert judged[0].reason == invalid.reason


def test_a_tool_asks_for_people_by_its_arguments() -> None:
    assert decisions(Policy(), call("refund", cents=100), call("refund", "2", cents=101)) == [
        "execute",
        "needs_approval",
    ]


@pytest.mark.parametrize(
    ("answer", "decision"),
    [(None, "execute"), (Deny("closed"), "denied"), (Ask(), "needs_approval"), (True, "denied")],
)
def test_a_rule_decides_by_call_and_state(answer: Any, decision: str) -> None:
    seen: list[Any] = []

    def rule(call: ToolCall, state: Any) -> Any:
        seen.append((call.name, state))
        return answer

    assert decisions(Policy(rule=rule), call("read"), state="state") == [decision]
    assert seen == [("read", "state")]


def test_a_rule_that_fails_denies() -> None:
    def broken(call: ToolCall, state: Any) -> None:
        raise KeyError("x")

    decision, reason = Policy(rule=broken).decide(call("read"))
    assert decision == "denied" and "KeyError" in reason


def test_where_nothing_may_be_changed_only_what_is_declared_to_read_runs() -> None:
    calls = [call("look"), call("read", "2"), call("refund", "3", cents=1)]
    assert decisions(Policy(read_only=True), *calls) == ["execute", "denied", "denied"]
    unless = Policy(read_only=True, unless={"read"})
    assert decisions(unless, *calls) == ["execute", "execute", "denied"]
    assert decisions(Policy(read_only=True, forbidden={"look"}), *calls[:1]) == ["denied"]
    unknown = check_call({"id": "1", "name": "write", "input": {}}, TOOLS)
    decision, reason = Policy(read_only=True).decide(unknown)
    assert decision == "denied" and "nothing may be changed" in reason
