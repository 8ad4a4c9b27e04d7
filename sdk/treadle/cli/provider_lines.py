"""The budgets of models' providers among what ``treadle limits`` lists."""

from __future__ import annotations

import time
from collections.abc import Sequence

from treadle.cli import output
from treadle.sdk.client.provider_list import WAITERS_TOLD, ProviderView, ProviderWait
from treadle.sdk.times import age, date


def show(budgets: Sequence[ProviderView], *, is_first: bool, as_json: bool) -> None:
    """Print budgets, behind what was printed already."""
    if as_json:
        for budget in budgets:
            output.emit(budget)
        return
    if not budgets:
        return
    if not is_first:
        output.say("")
    now_ms = time.time_ns() // 1_000_000
    rows = [
        (
            budget.name,
            _free(budget.requests_free, budget.requests_per_minute),
            _free(budget.tokens_free, budget.tokens_per_minute),
            date(budget.held_until_ms),
            f"{budget.waiting}",
            _steps(budget.called, len(budget.called), now_ms),
            _steps(budget.first, budget.waiting, now_ms),
        )
        for budget in budgets
    ]
    headings = ("PROVIDER", "REQUESTS", "TOKENS", "PAUSED UNTIL", "WAITING", "CALLED", "NEXT")
    output.table(headings, rows)


def _free(left: int | None, most: int) -> str:
    """Return what is free, of how much if the budget has a number of its own."""
    if left is None:
        return ""
    return f"{left:,}/{most:,} free" if most else f"{left:,} free"


def _steps(waits: Sequence[ProviderWait], count: int, now_ms: int) -> str:
    shown = [
        f"{each.run}/{each.step} ({age(now_ms - each.since_ms)})" for each in waits[:WAITERS_TOLD]
    ]
    more = count - len(shown)
    return ", ".join([*shown, f"{more} more"] if more > 0 else shown)
