"""Budgets: what is told counts once, only grows, and stops the loop where it was bounded.
Method: examples of each field and each way to tell; properties over any counts and any life."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core import strategies as own
from tests.core.moves import moves
from tests.core.walks import RunWalk, StepWalk, plan_of

from treadle.engine.core import StepEnded, StepParked
from treadle.engine.core.bounds import overspent, spent_by, task_of
from treadle.sdk.definition import AgentLoopStep, Retry
from treadle.sdk.messages import Ended, Parked, StepContinued, Task
from treadle.sdk.spending import (
    NOTHING,
    SPENT_MAX,
    UNLIMITED,
    SpendingLimits,
    Spent,
    at_least,
    micro_usd,
    plus,
    raised,
    reached,
)

Moves = list[tuple[str, dict[str, Any]]]
counts = st.integers(-3, 2**80)
spents = st.builds(
    Spent, tool_calls=counts, input_tokens=counts, output_tokens=counts, cost_micro_usd=counts
)
FIELDS = Spent.__struct_fields__


def calls(number: int) -> Spent:
    return Spent(tool_calls=number)


def loop(**fields: Any) -> StepWalk:
    fields = {"max_iterations": 9, "retry": Retry(max_attempts=9, delay_s=0), **fields}
    return StepWalk(AgentLoopStep(id="a", type="think", **fields))


# ------------------------------------------------------------------ counts


@given(spents, spents)
def test_counts_stay_within_what_every_reader_takes_and_only_grow(one: Spent, other: Spent) -> None:
    for merged in (plus(one, other), at_least(one, other)):
        for name in FIELDS:
            assert 0 <= getattr(merged, name) <= SPENT_MAX
    assert at_least(at_least(one, other), other) == at_least(one, other)
    assert plus(one, other) == plus(other, one)


def test_what_is_nothing_is_left_out_of_what_is_stored() -> None:
    assert plus(NOTHING, NOTHING) is NOTHING
    assert at_least(NOTHING, Spent()) is NOTHING
    assert plus(Spent(), Spent(tool_calls=-1)) is NOTHING


def test_a_sum_of_dollars_is_exact() -> None:
    cents = Spent(cost_micro_usd=micro_usd(0.1))
    assert plus(plus(cents, cents), cents).cost_usd == 0.3
    assert (micro_usd(0), micro_usd(1e-9), micro_usd(5)) == (0, 1, 5_000_000)


@pytest.mark.parametrize(
    ("limits", "spent", "reason"),
    [
        ({"tool_calls": 3}, {"tool_calls": 2}, ""),
        ({"tool_calls": 3}, {"tool_calls": 3}, "max_tool_calls"),
        ({"input_tokens": 3}, {"input_tokens": 3}, "max_tokens"),
        ({"output_tokens": 3}, {"output_tokens": 4}, "max_tokens"),
        ({"output_tokens": 3}, {"input_tokens": 4}, ""),
        ({"total_tokens": 3}, {"input_tokens": 1, "output_tokens": 2}, "max_tokens"),
        ({"total_tokens": 4}, {"input_tokens": 1, "output_tokens": 2}, ""),
        ({"cost_micro_usd": 3}, {"cost_micro_usd": 3}, "max_cost"),
        ({"cost_micro_usd": 3}, {"tool_calls": 99}, ""),
        ({"tool_calls": 1, "cost_micro_usd": 1}, {"cost_micro_usd": 1}, "max_cost"),
    ],
)
def test_a_bound_is_reached_when_all_of_it_is_used(
    limits: dict[str, int], spent: dict[str, int], reason: str
) -> None:
    assert reached(SpendingLimits(**limits), Spent(**spent)) == reason


def test_bounds_are_raised_never_lowered_and_none_begins() -> None:
    has = SpendingLimits(tool_calls=5, total_tokens=100)
    to, by = (
        SpendingLimits(tool_calls=3, total_tokens=120),
        SpendingLimits(tool_calls=2, total_tokens=-7, cost_micro_usd=9),
    )
    assert raised(has, to, by) == SpendingLimits(tool_calls=7, total_tokens=120)
    assert raised(has, UNLIMITED, UNLIMITED) is has
    assert raised(has, UNLIMITED, SpendingLimits(tool_calls=2**80)).tool_calls == SPENT_MAX


# ------------------------------------------------------------------ a step


def test_iterations_add_up() -> None:
    walk = loop()
    walk.continue_(spent=calls(2))
    walk.wait(spent=calls(3))
    walk.message()
    walk.complete(spent=calls(4), takes_messages=True, newest=10**9)
    assert (walk.now.spent, walk.now.spent_now) == (calls(9), NOTHING)
    assert walk.complete(spent=calls(1)).spent == calls(10)


def test_attempts_of_an_iteration_replace_each_other_and_lower_nothing() -> None:
    walk = loop()
    walk.continue_(spent=calls(1))
    walk.fail(spent=Spent(tool_calls=5, input_tokens=2))
    walk.fail(spent=Spent(tool_calls=3, input_tokens=9))
    assert walk.now.spent_now == Spent(tool_calls=5, input_tokens=9)
    walk.lose()
    assert walk.now.spent_now == Spent(tool_calls=5, input_tokens=9)
    task = walk.continue_(spent=calls(2))
    assert (task.spent, task.spent_now) == (Spent(tool_calls=6, input_tokens=9), NOTHING)


def test_an_end_by_failure_has_spent_what_was_told() -> None:
    walk = loop(retry=Retry())
    walk.continue_(spent=calls(1))
    assert walk.fail(spent=calls(2)).spent == calls(3)


@pytest.mark.parametrize("verb", ["continue_", "wait", "fail"])
@pytest.mark.parametrize("on_limit", ["fail", "wrap_up", "park"])
def test_a_used_up_budget_does_what_a_bound_does(verb: str, on_limit: str) -> None:
    walk = loop(max_tool_calls=3, on_limit=on_limit)
    walk.continue_(spent=calls(1))
    value = getattr(walk, verb)(spent=calls(2))
    match on_limit:
        case "fail":
            assert isinstance(value, Ended)
            assert value.failure is not None
            assert value.failure.type == "max_tool_calls"
            assert "3 of 3 tool calls" in value.failure.message
        case "wrap_up":
            assert (value.wrap_up, value.failures) == ("max_tool_calls", 0)
        case _:
            assert (value.reason, value.waits) == ("max_tool_calls", False)
            assert walk.resume(add_iterations=3) is value
            assert walk.resume(add_spending=SpendingLimits(tool_calls=1)).limits.tool_calls == 4
    if on_limit != "fail":
        iteration = task_of(walk.now).iteration
        assert iteration == (1 if verb == "fail" else 2)


def test_a_completion_beyond_the_budget_completes() -> None:
    assert loop(max_tool_calls=1).complete(spent=calls(50)).outcome == "completed"


def test_the_last_failure_is_known_when_a_budget_parks_a_failed_attempt() -> None:
    walk = loop(max_tool_calls=1, on_limit="park")
    parked = walk.fail(spent=calls(1))
    assert isinstance(parked, Parked)
    assert (parked.task.attempt, parked.task.failures) == (2, 1)
    assert parked.task.last_failure.type == "ValueError"


def test_every_budget_of_the_definition_is_in_the_first_task() -> None:
    walk = loop(
        max_tool_calls=1,
        max_input_tokens=2,
        max_output_tokens=3,
        max_total_tokens=4,
        max_cost_usd=0.000005,
    )
    assert walk.now.limits == SpendingLimits(
        tool_calls=1, input_tokens=2, output_tokens=3, total_tokens=4, cost_micro_usd=5
    )
    assert loop().now.limits is UNLIMITED


# Without delays a move is seldom in vain.
prompt = own.loop_steps().map(
    lambda step: msgspec.structs.replace(
        step, max_iterations=9, loop_delay_s=0, retry=Retry(max_attempts=9, delay_s=0)
    )
)


@given(prompt, moves())
def test_what_a_step_has_spent_only_grows_and_no_task_is_beyond_a_bound(
    step: AgentLoopStep, moves: Moves
) -> None:
    walk = StepWalk(step)
    before = NOTHING
    for verb, arguments in moves:
        value = getattr(walk, verb)(**arguments)
        spent = value.spent if isinstance(value, Ended) else spent_by(task_of(value))
        assert spent == at_least(before, spent), "nothing that counted is forgotten"
        told = at_least(NOTHING, arguments.get("spent", NOTHING))
        most = plus(before, told) if value is not walk.before else before
        assert at_least(most, spent) == most, "nothing counts more than it was told"
        if isinstance(value, Task) and not value.wrap_up:
            assert not overspent(value)
        before = spent


@given(own.loop_steps(), moves(), own.told)
def test_a_verdict_delivered_again_counts_once(
    step: AgentLoopStep, moves: Moves, told: Spent
) -> None:
    walk = StepWalk(step)
    for verb, arguments in moves:
        getattr(walk, verb)(**arguments)
    # The walk's own verbs hold the present token; the settle of an old one is stale by rule.
    token = walk.placed.sequence
    after = walk.continue_(spent=told)
    if after is walk.before:
        return
    late = StepContinued(step="a", type="think", token=token, head=token, spent=told)
    assert walk.send(late) is after


# ------------------------------------------------------------------ the document


def test_the_document_has_the_totals_of_steps_that_ended_or_parked() -> None:
    step = AgentLoopStep(id="a", type="think", max_iterations=3)
    walk = RunWalk(plan_of(step))
    run = walk.send(StepParked("a", "max_tool_calls", 1, "e2", 5, spent=calls(3)))
    assert run.steps["a"].spent == calls(3)
    run = walk.send(StepEnded("a", "completed", 2, None, "e3", 9, calls(4)))
    assert run.steps["a"].spent == calls(4)


@pytest.mark.parametrize(
    ("bound", "spent", "said"),
    [
        ({"max_tool_calls": 3}, Spent(tool_calls=3, input_tokens=5), "3 of 3 tool calls"),
        ({"max_input_tokens": 9}, Spent(input_tokens=11), "11 of 9 input tokens"),
        ({"max_output_tokens": 9}, Spent(output_tokens=9), "9 of 9 output tokens"),
        ({"max_total_tokens": 9}, Spent(input_tokens=5, output_tokens=5), "10 of 9 tokens"),
        ({"max_cost_usd": 0.25}, Spent(cost_micro_usd=500_000), "0.5 of 0.25 USD"),
        (
            {"max_tool_calls": 3, "max_cost_usd": 2},
            Spent(tool_calls=4, cost_micro_usd=1_000_000),
            "4 of 3 tool calls, 1 of 2 USD",
        ),
    ],
)
def test_a_loop_that_has_used_up_a_bound_says_what_it_used_of_each(
    bound: dict[str, Any], spent: Spent, said: str
) -> None:
    ended = loop(**bound).continue_(spent=spent)
    assert isinstance(ended, Ended) and ended.failure is not None
    assert ended.failure.message.endswith(f"iterations of at most 9: {said}")
