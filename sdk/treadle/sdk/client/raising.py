"""A resume with raised bounds: ``max_*`` raise to, ``add_*`` raise by."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypedDict

from treadle.sdk.errors import UserError
from treadle.sdk.ids import check_id
from treadle.sdk.limits import COST_USD_MAX
from treadle.sdk.messages import ResumeRequested
from treadle.sdk.spending import (
    MAX_COST,
    MAX_TOKENS,
    MAX_TOOL_CALLS,
    MICRO,
    SharedBudget,
    SpendingLimits,
    Spent,
    micro_usd,
    plus,
    reached,
)

RAISED_MAX = 2**53
"""The largest whole number that every reader of JSON takes exactly."""

_TOKENS_STEP = 100_000
_SECONDS_STEP = 300
_CALLS_STEP = 50
_DOLLARS_STEP = 5


def raise_past(reason: str, limits: SpendingLimits, spent: Spent, late_ms: int) -> str:
    """Return the options of a resume that raise the bound above what was used of it.

    ``late_ms`` is how long after its ``max_duration`` the step parked.
    """
    over = max((used - limit for limit, used in _used_of(reason, limits, spent)), default=0)
    match reason:
        case "max_duration":
            return f"--max-duration +{_SECONDS_STEP + math.ceil(max(0, late_ms) / 1000)}"
        case "max_tool_calls":
            return f"--add-tool-calls {_CALLS_STEP + max(0, over)}"
        case "max_tokens":
            return f"--add-tokens {_TOKENS_STEP * (1 + math.ceil(max(0, over) / _TOKENS_STEP))}"
        case "max_cost":
            return f"--add-cost {_DOLLARS_STEP + math.ceil(max(0, over) / MICRO)}"
        case _:
            return "--max-iterations +10"


def used_text(reason: str, limits: SpendingLimits, spent: Spent) -> str:
    """Return what was used of a bound on spending: ``5.02 of 5 USD``; '' for other bounds."""
    return _used(reason, [pair for pair in _used_of(reason, limits, spent) if pair[1] >= pair[0]])


def _used(reason: str, pairs: list[tuple[int, int]]) -> str:
    if reason == MAX_COST:
        return ", ".join(f"{used / MICRO:g} of {limit / MICRO:g} USD" for limit, used in pairs)
    unit = "tokens" if reason == MAX_TOKENS else "tool calls"
    return ", ".join(f"{used} of {limit} {unit}" for limit, used in pairs)


def raise_budget(budget: SharedBudget, spent: Spent) -> str:
    """Return the options of a resume that raise the budget of a run above what was used of it."""
    total = plus(budget.others, spent)
    return raise_past(reached(budget.limits, total), budget.limits, total, 0)


def budget_text(budget: SharedBudget, spent: Spent) -> str:
    """Return what was used of the budget of a run: of what is used up, or of all that it bounds."""
    total = plus(budget.others, spent)
    if reason := reached(budget.limits, total):
        return used_text(reason, budget.limits, total)
    return ", ".join(
        _used(reason, pairs)
        for reason in (MAX_TOOL_CALLS, MAX_TOKENS, MAX_COST)
        if (pairs := _used_of(reason, budget.limits, total))
    )


def _used_of(reason: str, limits: SpendingLimits, spent: Spent) -> list[tuple[int, int]]:
    """Return (limit, used) of each number that the bound has a limit on."""
    numbers = {
        MAX_TOOL_CALLS: [(limits.tool_calls, spent.tool_calls)],
        MAX_TOKENS: [
            (limits.input_tokens, spent.input_tokens),
            (limits.output_tokens, spent.output_tokens),
            (limits.total_tokens, spent.total_tokens),
        ],
        MAX_COST: [(limits.cost_micro_usd, spent.cost_micro_usd)],
    }
    return [(limit, used) for limit, used in numbers.get(reason, []) if limit]


class Raised(TypedDict, total=False):
    """The bounds that a resume may raise; a bound that the step does not have stays away."""

    max_iterations: int
    add_iterations: int
    max_duration: timedelta | None
    add_duration: timedelta | None
    max_tool_calls: int
    add_tool_calls: int
    max_input_tokens: int
    add_input_tokens: int
    max_output_tokens: int
    add_output_tokens: int
    max_total_tokens: int
    add_total_tokens: int
    max_cost_usd: float
    add_cost_usd: float


def resume_request(step: str | None, raised: Raised) -> ResumeRequested:
    """Return the request; raise ``UserError`` for a bound that there is not, or is not raised."""
    unknown = sorted(raised.keys() - Raised.__annotations__.keys())
    if unknown:
        known = ", ".join(Raised.__annotations__)
        raise UserError(f"{', '.join(unknown)} cannot be raised. What can is: {known}.")
    return ResumeRequested(
        step=check_id("step", step) if step else "",
        max_iterations=_count("max_iterations", raised.get("max_iterations", 0)),
        add_iterations=_count("add_iterations", raised.get("add_iterations", 0)),
        max_duration_ms=_count("max_duration", _ms(raised.get("max_duration"))),
        add_duration_ms=_count("add_duration", _ms(raised.get("add_duration"))),
        max_spending=SpendingLimits(
            tool_calls=_count("max_tool_calls", raised.get("max_tool_calls", 0)),
            input_tokens=_count("max_input_tokens", raised.get("max_input_tokens", 0)),
            output_tokens=_count("max_output_tokens", raised.get("max_output_tokens", 0)),
            total_tokens=_count("max_total_tokens", raised.get("max_total_tokens", 0)),
            cost_micro_usd=_cost("max_cost_usd", raised.get("max_cost_usd", 0)),
        ),
        add_spending=SpendingLimits(
            tool_calls=_count("add_tool_calls", raised.get("add_tool_calls", 0)),
            input_tokens=_count("add_input_tokens", raised.get("add_input_tokens", 0)),
            output_tokens=_count("add_output_tokens", raised.get("add_output_tokens", 0)),
            total_tokens=_count("add_total_tokens", raised.get("add_total_tokens", 0)),
            cost_micro_usd=_cost("add_cost_usd", raised.get("add_cost_usd", 0)),
        ),
    )


def _ms(duration: timedelta | None) -> int:
    return round(duration.total_seconds() * 1000) if duration else 0


def _count(name: str, value: int) -> int:
    if not 0 <= value <= RAISED_MAX:
        raise UserError(
            f"{name} is {value}; a bound is raised, by at most {RAISED_MAX}. Correct it."
        )
    return value


def _cost(name: str, dollars: float) -> int:
    if not math.isfinite(dollars) or not 0 <= dollars <= COST_USD_MAX:
        raise UserError(
            f"{name} is {dollars}; a bound is raised, by at most {COST_USD_MAX:.0f} dollars. "
            "Correct it."
        )
    return micro_usd(dollars)
