"""Which budgets bound the loops of a run, given what was used. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from treadle.sdk.run import RunDocument
from treadle.sdk.spending import NOTHING, UNLIMITED, SharedBudget, Spent, plus


def is_bounded(run: RunDocument) -> bool:
    """True when a budget bounds the loops of a run: its own, or one of a run above it."""
    return run.limits != UNLIMITED or (run.parent is not None and run.parent.bounded)


def shared(levels: Iterable[tuple[RunDocument, Spent]]) -> tuple[SharedBudget, ...]:
    """Return the budgets that bound a loop.

    ``levels`` are its run and those above it, each with what was used in it besides by the loop,
    or by the run below.
    """
    others, found = NOTHING, list[SharedBudget]()
    for run, used in levels:
        others = plus(others, used)
        if run.limits != UNLIMITED:
            found.append(SharedBudget(run=run.run, limits=run.limits, others=others))
    return tuple(found)
