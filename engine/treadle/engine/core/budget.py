"""The budget of a run, which its loops share with those of its children.

    used of a run's budget = what all loops of the run and of the runs below it have told

A loop is told at each boundary what the others have used, and is stopped there by its own
``on_limit`` if that and its own use come to the budget: of its run, or of a run above that.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core.moment import Moment
from treadle.engine.core.signals import is_applied
from treadle.sdk import spending
from treadle.sdk.messages import LiveRegister, ResumeRequested, Task
from treadle.sdk.run import RunDocument
from treadle.sdk.spending import SharedBudget


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
