"""The budget of a run, which its loops share with those of its children.

    used of a run's budget = what all loops of the run and of the runs below it have told

A loop is told at each boundary what the others have used, and is stopped there by its own
``on_limit`` if that and its own use come to the budget: of its run, or of a run above that.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from treadle.engine.core.moment import Moment
from treadle.engine.core.signals import is_applied
from treadle.sdk import spending
from treadle.sdk.messages import LiveRegister, ResumeRequested, Task
from treadle.sdk.run import RunDocument
from treadle.sdk.spending import NOTHING, UNLIMITED, SharedBudget, Spent


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
        others = spending.plus(others, used)
        if run.limits != UNLIMITED:
            found.append(SharedBudget(run=run.run, limits=run.limits, others=others))
    return tuple(found)


def informed(register: LiveRegister, budgets: tuple[SharedBudget, ...]) -> LiveRegister:
    """Return a register that knows the budgets as they stand now."""
    if isinstance(register, Task):
        return msgspec.structs.replace(register, budgets=budgets)
    task = msgspec.structs.replace(register.task, budgets=budgets)
    return msgspec.structs.replace(register, task=task)


def raised(run: RunDocument, event: ResumeRequested, moment: Moment) -> RunDocument:
    """Return the run with the budget that a resume raises, once; the same object otherwise."""
    if is_applied(run, moment):
        return run
    limits = spending.raised(run.limits, event.max_spending, event.add_spending)
    if limits is run.limits:
        return run
    return msgspec.structs.replace(run, limits=limits, applied=(*run.applied, moment.id))
