"""What a loop spends: counts that its handler reports, and the bounds on them.

Counts only grow, and adding them is done in one place (the engine), once for each committed
iteration. Money is in millionths of a dollar, a whole number, so that sums are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

import msgspec

SPENT_MAX = 2**53
"""The largest whole number that every reader of JSON takes exactly; a count stops there."""

MICRO = 1_000_000
"""Millionths in one dollar."""

MAX_TOOL_CALLS = "max_tool_calls"
MAX_TOKENS = "max_tokens"
MAX_COST = "max_cost"
RUN_BUDGET = "run_budget"
"""The budget of the run, or of one above it, and not of the loop."""
SPENDING_REASONS = (MAX_TOOL_CALLS, MAX_TOKENS, MAX_COST, RUN_BUDGET)
"""Names of the bounds on spending, as a parked or failed step gives them."""


class Spent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was used: tool calls, tokens, money."""

    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    cost_micro_usd: int = 0

    def __add__(self, other: Spent) -> Spent:
        return plus(self, other)

    @property
    def total_tokens(self) -> int:
        """Tokens read and written."""
        return self.input_tokens + self.output_tokens

    @property
    def cost_usd(self) -> float:
        """The cost in dollars."""
        return self.cost_micro_usd / MICRO


class SpendingLimits(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Bounds on what a loop may use; 0 is unlimited. Also what a request raises them by or to."""

    tool_calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost_micro_usd: int = 0


class SharedBudget(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """The budget of a run, as one of the loops sees it that use it together."""

    run: str
    limits: SpendingLimits
    others: Spent
    """What all but this loop had used of it when an engine looked last."""


# The defaults of stored values. What equals a default is left out of them by its identity, so a
# sum that is nothing is this very object.
NOTHING = Spent()
UNLIMITED = SpendingLimits()


def plus(one: Spent, other: Spent) -> Spent:
    """Return the sum of two counts."""
    return _merged(one, other, lambda a, b: a + b)


def at_least(one: Spent, other: Spent) -> Spent:
    """Return the larger of each count: what is heard late or twice takes nothing away."""
    return _merged(one, other, max)


def reached(limits: SpendingLimits, spent: Spent) -> str:
    """Return the name of the first bound that is used up, or ''."""
    return next(all_reached(limits, spent), "")


def all_reached(limits: SpendingLimits, spent: Spent) -> Iterator[str]:
    """Yield the name of each bound that is used up."""
    if limits is UNLIMITED:
        return
    if _is_used_up(limits.tool_calls, spent.tool_calls):
        yield MAX_TOOL_CALLS
    if (
        _is_used_up(limits.input_tokens, spent.input_tokens)
        or _is_used_up(limits.output_tokens, spent.output_tokens)
        or _is_used_up(limits.total_tokens, spent.total_tokens)
    ):
        yield MAX_TOKENS
    if _is_used_up(limits.cost_micro_usd, spent.cost_micro_usd):
        yield MAX_COST


def shared_reached(budgets: Sequence[SharedBudget], spent: Spent) -> SharedBudget | None:
    """Return the first budget that a loop and the others have used up together."""
    for budget in budgets:
        if reached(budget.limits, plus(budget.others, spent)):
            return budget
    return None


def raised(limits: SpendingLimits, to: SpendingLimits, by: SpendingLimits) -> SpendingLimits:
    """Return the bounds raised to, then by, what is asked; none is lowered or begins to bind."""

    def one(name: str) -> int:
        present: int = getattr(limits, name)
        if not present:
            return 0
        wanted: int = max(present, getattr(to, name)) + max(0, getattr(by, name))
        return max(present, min(wanted, SPENT_MAX))

    new = SpendingLimits(**{name: one(name) for name in SpendingLimits.__struct_fields__})
    return limits if new == limits else new


class _Bounded(Protocol):
    """A loop, or a workflow, as it is defined."""

    @property
    def max_tool_calls(self) -> int: ...
    @property
    def max_input_tokens(self) -> int: ...
    @property
    def max_output_tokens(self) -> int: ...
    @property
    def max_total_tokens(self) -> int: ...
    @property
    def max_cost_usd(self) -> float: ...


def limits_of(defined: _Bounded) -> SpendingLimits:
    """Return the bounds that a loop or a workflow is defined with."""
    limits = SpendingLimits(
        tool_calls=defined.max_tool_calls,
        input_tokens=defined.max_input_tokens,
        output_tokens=defined.max_output_tokens,
        total_tokens=defined.max_total_tokens,
        cost_micro_usd=micro_usd(defined.max_cost_usd),
    )
    return UNLIMITED if limits == UNLIMITED else limits


def micro_usd(dollars: float) -> int:
    """Return dollars in millionths; what is not nothing is one at least."""
    return max(1, round(dollars * MICRO)) if dollars > 0 else 0


def _merged(one: Spent, other: Spent, merge: Callable[[int, int], int]) -> Spent:
    if one is NOTHING and other is NOTHING:
        return NOTHING
    merged = {
        name: min(max(0, merge(getattr(one, name), getattr(other, name))), SPENT_MAX)
        for name in Spent.__struct_fields__
    }
    return Spent(**merged) if any(merged.values()) else NOTHING


def _is_used_up(limit: int, used: int) -> bool:
    return 0 < limit <= used
