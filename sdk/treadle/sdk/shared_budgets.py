"""What runs have used of the budgets that their loops share, from what is stored.

    used of a run's budget = what all loops of the run and of the runs below it have told

A loop tells its register at each boundary, and the document when it has ended; so the registers of
loops under way are read, and the documents of children. The engine asks at the boundaries of a
loop, a client when it explains or resumes one that has stopped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Protocol

from treadle.sdk.definition import AgentLoopStep, Step, SubWorkflowStep
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Ended, Register, Task
from treadle.sdk.run import UNDER_WAY, RunDocument, StepEntry, child_of
from treadle.sdk.run_budgets import is_bounded, shared
from treadle.sdk.spending import NOTHING, SharedBudget, Spent, plus
from treadle.sdk.subjects import RegisterAddress


class Books(Protocol):
    """Where one reads what runs have used. All raise ``StoredUnreadable``."""

    async def run(self, run: str) -> RunDocument | None:
        """Return the document of a run as it is stored; None if there is none."""
        ...

    async def steps(self, run: RunDocument) -> Mapping[str, Step]:
        """Return the steps of a run, the planned ones included; none if it is not registered."""
        ...

    async def loop(self, address: RegisterAddress) -> Register | None:
        """Return the register of a loop."""
        ...


async def budgets_of(books: Books, run: RunDocument, step_id: str) -> tuple[SharedBudget, ...]:
    """Return the budgets that bound a step of a run, as they stand now; none if it is no loop."""
    if not is_bounded(run):
        return ()
    steps = await books.steps(run)
    if not isinstance(steps.get(step_id), AgentLoopStep):
        return ()
    levels, own = list[tuple[RunDocument, Spent]](), NOTHING
    while True:
        levels.append((run, plus(own, await used(books, run, steps, but=step_id))))
        link = run.parent
        above = await books.run(link.run) if link and link.bounded else None
        if link is None or above is None:
            return shared(levels)
        run, step_id = above, link.step
        steps = await books.steps(run)
        # What earlier attempts of the step have used is its own, and not of the run below.
        own = run.steps[step_id].spent if step_id in run.steps else NOTHING


async def used(books: Books, run: RunDocument, steps: Mapping[str, Step], but: str = "") -> Spent:
    """Return what a run has used with those below it, except one step: all that was told."""
    parts = await asyncio.gather(
        *(
            _of_step(books, run, steps.get(step_id), step_id, entry)
            for step_id, entry in run.steps.items()
            if step_id != but
        )
    )
    total = NOTHING
    for part in parts:
        total = plus(total, part)
    return total


def told(register: Register | None) -> Spent:
    """Return what a loop has told its register."""
    if register is None:
        return NOTHING
    if isinstance(register, Ended):
        return register.spent
    task = register if isinstance(register, Task) else register.task
    return plus(task.spent, task.spent_now)


async def _of_step(
    books: Books, run: RunDocument, step: Step | None, step_id: str, entry: StepEntry
) -> Spent:
    # A loop that was stopped has told its register alone, and a child that was, nobody.
    is_told = entry.status not in UNDER_WAY and entry.status != "cancelled"
    if isinstance(step, AgentLoopStep) and not is_told:
        try:
            return told(await books.loop(RegisterAddress(run.domain, run.run, step_id, step.type)))
        except StoredUnreadable:
            return NOTHING
    if isinstance(step, SubWorkflowStep) and not is_told and not step.detached:
        return plus(entry.spent, await _of_child(books, child_of(run, step_id)))
    return entry.spent


async def _of_child(books: Books, child: str) -> Spent:
    try:
        run = await books.run(child)
        if run is None:
            return NOTHING
        steps = await books.steps(run)
    except StoredUnreadable:
        return NOTHING
    return await used(books, run, steps)
