"""What runs have used of their budgets, with their loops that are under way and their children.

A loop tells its register at each boundary, and the document when it has ended; so the registers of
loops under way are read, and the documents of children. Only runs that a budget bounds are asked.
"""

from __future__ import annotations

import asyncio

from treadle.engine.core import budget
from treadle.engine.core.advance import Placed, RegisterEvent, is_live
from treadle.engine.core.bounds import spent_by, task_of
from treadle.engine.core.plan import Plan
from treadle.engine.documents import Documents
from treadle.engine.planned import RunPlans
from treadle.engine.registers import Registers
from treadle.sdk import failpoints
from treadle.sdk.definition import AgentLoopStep, SubWorkflowStep
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Ended, ResumeRequested, SettleEvent
from treadle.sdk.run import UNDER_WAY, RunDocument, StepEntry, child_of
from treadle.sdk.spending import NOTHING, SharedBudget, Spent, plus
from treadle.sdk.subjects import RegisterAddress


class Ledger:
    """Sums what runs have used."""

    def __init__(self, documents: Documents, plans: RunPlans, registers: Registers) -> None:
        self._documents = documents
        self._plans = plans
        self._registers = registers

    async def informed(
        self, address: RegisterAddress, placed: Placed, event: RegisterEvent
    ) -> Placed:
        """Return a loop's register that knows what the others have used, if an event asks for it.

        The budgets are in the register since its first value, so that others are not looked for.
        """
        register = placed.register
        if not is_live(register) or not task_of(register).budgets:
            return placed
        is_verdict = isinstance(event, SettleEvent) and event.token == placed.sequence
        if not is_verdict and not isinstance(event, ResumeRequested):
            return placed
        # Not the document in memory: another engine may have begun steps since.
        version = await self._documents.read(address.run)
        if version is None:
            return placed
        plan = await self._plans.of_run(version.run)
        budgets = await self.budgets(plan, version.run, address.step)
        failpoints.reach("engine.budget-read")
        return placed._replace(register=budget.informed(register, budgets))

    async def budgets(
        self, plan: Plan | None, run: RunDocument, step_id: str
    ) -> tuple[SharedBudget, ...]:
        """Return the budgets that bound a step of a run; none if it is no loop."""
        is_loop = plan is not None and isinstance(plan.steps.get(step_id), AgentLoopStep)
        if not is_loop or not budget.is_bounded(run):
            return ()
        levels, own = list[tuple[RunDocument, Spent]](), NOTHING
        while True:
            levels.append((run, plus(own, await self.of_run(plan, run, but=step_id))))
            link = run.parent
            version = await self._documents.read(link.run) if link and link.bounded else None
            if link is None or version is None:
                return budget.shared(levels)
            run, step_id = version.run, link.step
            plan = await self._plans.of_run(run)
            # What earlier attempts of the step have used is its own, and not of the run below.
            own = run.steps[step_id].spent if step_id in run.steps else NOTHING

    async def of_run(self, plan: Plan | None, run: RunDocument, but: str = "") -> Spent:
        """Return what a run has used with those below it, except one step: all that was told."""
        parts = await asyncio.gather(
            *(
                self._of_step(plan, run, step_id, entry)
                for step_id, entry in run.steps.items()
                if step_id != but
            )
        )
        total = NOTHING
        for part in parts:
            total = plus(total, part)
        return total

    async def _of_step(
        self, plan: Plan | None, run: RunDocument, step_id: str, entry: StepEntry
    ) -> Spent:
        step = plan.steps.get(step_id) if plan else None
        # A loop that was stopped has told its register alone, and a child that was, nobody.
        is_told = entry.status not in UNDER_WAY and entry.status != "cancelled"
        if isinstance(step, AgentLoopStep) and not is_told:
            return await self._of_loop(RegisterAddress(run.domain, run.run, step_id, step.type))
        if isinstance(step, SubWorkflowStep) and not is_told and not step.detached:
            return plus(entry.spent, await self._of_child(child_of(run, step_id)))
        return entry.spent

    async def _of_loop(self, address: RegisterAddress) -> Spent:
        try:
            placed = await self._registers.read(address)
        except StoredUnreadable:
            return NOTHING
        if placed is None:
            return NOTHING
        if isinstance(placed.register, Ended):
            self._registers.forget(address)
            return placed.register.spent
        return spent_by(task_of(placed.register))

    async def _of_child(self, child: str) -> Spent:
        try:
            version = await self._documents.read(child)
            plan = await self._plans.of_run(version.run) if version else None
        except StoredUnreadable:
            return NOTHING
        return await self.of_run(plan, version.run) if version else NOTHING
