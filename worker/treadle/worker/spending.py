"""What is left of a loop's budgets, for its handler."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from treadle.sdk.spending import MICRO, SharedBudget, SpendingLimits, Spent, plus


class Remaining(msgspec.Struct, frozen=True, kw_only=True):
    """What may still be used; ``None`` is any amount. Never below 0."""

    tool_calls: int | None
    input_tokens: int | None
    output_tokens: int | None
    total_tokens: int | None
    cost_usd: float | None


def least(limits: SpendingLimits, spent: Spent, budgets: Sequence[SharedBudget]) -> Remaining:
    """Return what a loop's limits leave after what was used, and what the budgets it shares do."""
    found = remaining(limits, spent)
    for budget in budgets:
        other = remaining(budget.limits, plus(budget.others, spent))
        found = Remaining(
            **{
                name: _lower(getattr(found, name), getattr(other, name))
                for name in Remaining.__struct_fields__
            }
        )
    return found


def remaining(limits: SpendingLimits, spent: Spent) -> Remaining:
    """Return what the limits leave after what was used."""
    cost = _left(limits.cost_micro_usd, spent.cost_micro_usd)
    return Remaining(
        tool_calls=_left(limits.tool_calls, spent.tool_calls),
        input_tokens=_left(limits.input_tokens, spent.input_tokens),
        output_tokens=_left(limits.output_tokens, spent.output_tokens),
        total_tokens=_left(limits.total_tokens, spent.total_tokens),
        cost_usd=None if cost is None else cost / MICRO,
    )


def _lower(one: Any, other: Any) -> Any:
    return other if one is None else one if other is None else min(one, other)


def _left(limit: int, used: int) -> int | None:
    return max(0, limit - used) if limit else None
