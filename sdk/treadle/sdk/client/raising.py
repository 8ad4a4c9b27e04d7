"""A resume with raised bounds: ``max_*`` raise to, ``add_*`` raise by."""

from __future__ import annotations

import math
from datetime import timedelta
from typing import TypedDict

import msgspec

from treadle.sdk import spending
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
)

RAISED_MAX = 2**53
"""The largest whole number that every reader of JSON takes exactly."""

_TOKENS_STEP = 100_000
_SECONDS_STEP = 300
_CALLS_STEP = 50
_ITERATIONS_STEP = 10
_DOLLARS_STEP = 5


class Raise(msgspec.Struct, frozen=True, kw_only=True):
    """By how much a resume raises bounds; 0 is not at all."""

    iterations: int = 0
    seconds: int = 0
    tool_calls: int = 0
    tokens: int = 0
    """Of each bound on tokens."""
    dollars: float = 0

    def __or__(self, other: Raise) -> Raise:
        """Return what raises by both: a resume adds the same to every bound of a kind."""
        names = self.__struct_fields__
        return Raise(**{name: max(getattr(self, name), getattr(other, name)) for name in names})

    @property
    def options(self) -> tuple[str, ...]:
        """The options of ``treadle run resume`` that raise by so much."""
        options = {
            "--max-iterations +": self.iterations,
            "--max-duration +": self.seconds,
            "--add-tool-calls ": self.tool_calls,
            "--add-tokens ": self.tokens,
            "--add-cost ": self.dollars,
        }
        return tuple(f"{option}{by:.16g}" for option, by in options.items() if by)


def past(reason: str, limits: SpendingLimits, spent: Spent) -> Raise:
    """Return what raises a bound on spending above what was used of it."""
    over = max((used - limit for limit, used in _used_of(reason, limits, spent)), default=0)
    match reason:
        case spending.MAX_TOOL_CALLS:
            return Raise(tool_calls=_CALLS_STEP + over)
        case spending.MAX_TOKENS:
            return Raise(tokens=_TOKENS_STEP * (1 + math.ceil(over / _TOKENS_STEP)))
        case _:
            return Raise(dollars=_DOLLARS_STEP + math.ceil(over / MICRO))


def past_iterations(over: int) -> Raise:
    """Return what raises the bound on iterations that is exceeded by so many, or just reached."""
    return Raise(iterations=_ITERATIONS_STEP + over)


def past_duration(late_ms: int) -> Raise:
    """Return what raises the bound on time that was over for so long."""
    return Raise(seconds=_SECONDS_STEP + math.ceil(late_ms / 1000))


def raise_of(request: ResumeRequested) -> Raise:
    """Return by how much a resume raises bounds, those that it raises to a value left out."""
    by = request.add_spending
    return Raise(
        iterations=request.add_iterations,
        seconds=math.ceil(request.add_duration_ms / 1000),
        tool_calls=by.tool_calls,
        tokens=max(by.input_tokens, by.output_tokens, by.total_tokens),
        dollars=by.cost_micro_usd / MICRO,
    )


def used_text(reason: str, limits: SpendingLimits, spent: Spent) -> str:
    """Return what was used of a bound on spending that is used up: ``5.02 of 5 USD``."""
    return _used(reason, [pair for pair in _used_of(reason, limits, spent) if pair[1] >= pair[0]])


def _used(reason: str, pairs: list[tuple[int, int]]) -> str:
    if reason == MAX_COST:
        return ", ".join(f"{used / MICRO:g} of {limit / MICRO:g} USD" for limit, used in pairs)
    unit = "tokens" if reason == MAX_TOKENS else "tool calls"
    return ", ".join(f"{used} of {limit} {unit}" for limit, used in pairs)


def budget_text(budget: SharedBudget, spent: Spent) -> str:
    """Return what was used of all that the budget of a run bounds."""
    total = plus(budget.others, spent)
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
