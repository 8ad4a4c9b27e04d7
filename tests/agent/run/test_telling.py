"""What is said about budgets: to the model while there is room, to people when there is none.

Runs that never end by themselves, against a bound each.
"""

from __future__ import annotations

import datetime
import itertools
from typing import Any

import pytest
from tests.agent.run.stage import play, said

from treadle.worker.agent.core.budget import Budget, Counters
from treadle.worker.agent.core.conversation import Usage
from treadle.worker.agent.core.entries import Stopped
from treadle.worker.agent.core.telling import notice
from treadle.worker.agent.models.prices import Price, PriceTable
from treadle.worker.agent.testing import text, tool_use, turn
from treadle.worker.agent.tools.declaring import tool

PRICES = PriceTable({"claude": Price(input=0, output=1_000_000)})
NOTICE_CHARS_MAX = 1_000


@tool(idempotent=True)
async def look(n: int) -> str:
    """Look at the n-th."""
    return f"seen {n}"


@tool(idempotent=True)
async def read(n: int) -> str:
    """Read the n-th."""
    return f"read {n}"


def looking(request: Any) -> Any:
    """Look for ever at a cost of ten tokens a turn; give a text when no tool may run."""
    usage = {"output_tokens": 10}
    if request.body.get("tool_choice") == {"type": "none"}:
        return turn(text("so far"), usage=usage)
    name = ("look", "read")[request.index % 2]
    return turn(tool_use(name, {"n": request.index}), usage=usage)


TOLD: list[tuple[Budget, str, str]] = [
    (Budget(max_steps=20), "12 of 20 turns", "17 of 20 turns"),
    (Budget(max_steps=999, max_tool_calls=20), "12 of 20 tool calls", "17 of 20 tool calls"),
    (
        Budget(max_steps=999, max_output_tokens=200),
        "120 of 200 output tokens",
        "170 of 200 output tokens",
    ),
    (Budget(max_steps=999, max_cost_usd=200), "120 of 200 USD", "170 of 200 USD"),
]


@pytest.mark.parametrize(("budget", "at_60", "at_85"), TOLD)
def test_of_each_budget_the_model_is_told_once_at_60_and_once_at_85_percent(
    budget: Budget, at_60: str, at_85: str
) -> None:
    played = play(looking, tools=[look, read], budget=budget, prices=PRICES)
    told = [
        (index, words)
        for index, request in enumerate(played.requests)
        if "are left" in (words := said(request.messages[-1]))
    ]
    assert [index for index, _ in told] == [12, 17]
    assert at_60 in told[0][1] and at_85 in told[1][1]
    assert all(len(words) < NOTICE_CHARS_MAX for _, words in told)


@pytest.mark.parametrize("bound", ["max_input_tokens", "max_total_tokens"])
def test_tokens_that_are_read_are_told_of_too(bound: str) -> None:
    played = play(
        looking, tools=[look, read], budget=Budget(max_steps=999, **{bound: 20_000}), prices=PRICES
    )
    told = [words for r in played.requests if "tokens are used" in (words := said(r.messages[-1]))]
    assert len(told) == 2 and all("of 20,000" in words for words in told)


def test_time_is_told_of_as_the_part_before_the_last_answer() -> None:
    now = [1_000_000]

    def next_turn(request: Any) -> Any:
        now[0] += 1_000
        return looking(request)

    budget = Budget(max_steps=999, max_duration=datetime.timedelta(seconds=40))
    played = play(next_turn, tools=[look, read], budget=budget, run={"clock": lambda: now[0]})
    told = [words for r in played.requests if "of 30 seconds" in (words := said(r.messages[-1]))]
    assert len(told) == 2
    assert "18 of 30 seconds are used; 12 are left" in told[0]
    assert played.reason == "timeout"


def test_two_budgets_at_once_are_one_notice_and_a_share_that_was_passed_over_is_not_made_up() -> (
    None
):
    budget = Budget(max_steps=10, max_tool_calls=10)
    said_, told = notice(budget, Counters(steps=9, tool_calls=6), 0, {})
    assert said_.count("are left") == 2
    assert told == {"max_steps": 2, "max_tool_calls": 1}
    again, _ = notice(budget, Counters(steps=9, tool_calls=7), 0, told)
    assert again == ""
    tokens = Budget(max_total_tokens=1_000_000)
    used = Counters(usage=Usage(input_tokens=600_000, cache_read_tokens=123_456))
    assert "723,456 of 1,000,000 tokens" in notice(tokens, used, 0, {})[0]


def test_a_notice_is_only_appended_so_that_the_cached_prefix_stands() -> None:
    played = play(looking, tools=[look, read], budget=Budget(max_tool_calls=20), prices=PRICES)
    requests = played.requests[:-1]  # The last one forbids tools, which is another prefix.
    for before, after in itertools.pairwise(requests):
        old, new = before.body["messages"], after.body["messages"]
        assert [plain(m) for m in new[: len(old)]] == [plain(m) for m in old]
    read_tokens = [
        each.usage.cache_read_tokens
        for each in played.stage.entries
        if type(each).__name__ == "Answered"
    ]
    assert all(tokens > 0 for tokens in read_tokens[2:-1])


def plain(message: dict[str, Any]) -> Any:
    content = [
        {key: value for key, value in block.items() if key != "cache_control"}
        for block in message["content"]
    ]
    return message["role"], content


# ------------------------------------------------------------------ the end

ENDS: list[tuple[Budget, str]] = [
    (Budget(max_steps=2), "max_steps is 2, and 3 turns are used. Raise max_steps"),
    (Budget(max_tool_calls=2), "max_tool_calls is 2, and 2 tool calls are used. Raise"),
    (Budget(max_output_tokens=15), "max_output_tokens is 15, and 30 output tokens are used."),
    (Budget(max_cost_usd=15), "max_cost_usd is 15, and 30 USD are used. Raise max_cost_usd"),
]


@pytest.mark.parametrize(("budget", "text_"), ENDS)
def test_a_run_that_stopped_at_a_bound_says_which_its_value_and_what_to_do(
    budget: Budget, text_: str
) -> None:
    played = play(looking, tools=[look, read], budget=budget, prices=PRICES)
    assert text_ in played.result.detail
    (stopped,) = [e for e in played.stage.entries if isinstance(e, Stopped)]
    assert stopped.detail == played.result.detail
    failing = play(looking, tools=[look, read], budget=budget, prices=PRICES, on_limit="fail")
    assert "Raise" in failing.result.detail
