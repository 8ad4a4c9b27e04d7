"""The engine's books: what runs have used of their budgets (``sdk/shared_budgets.py``).

Only runs that a budget bounds are asked.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.engine.core import budget
from treadle.engine.core.advance import Placed, RegisterEvent, is_live
from treadle.engine.core.bounds import task_of
from treadle.engine.core.plan import Plan
from treadle.engine.documents import Documents
from treadle.engine.planned import RunPlans
from treadle.engine.registers import Registers
from treadle.sdk import failpoints
from treadle.sdk.definition import Step
from treadle.sdk.messages import Ended, Register, ResumeRequested, SettleEvent
from treadle.sdk.run import RunDocument
from treadle.sdk.shared_budgets import budgets_of, used
from treadle.sdk.spending import SharedBudget, Spent
from treadle.sdk.subjects import RegisterAddress


class Ledger:
    """Reads what runs have used."""

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
        run = await self.run(address.run)
        if run is None:
            return placed
        budgets = await self.budgets(run, address.step)
        failpoints.reach("engine.budget-read")
        return placed._replace(register=budget.informed(register, budgets))

    async def budgets(self, run: RunDocument, step_id: str) -> tuple[SharedBudget, ...]:
        """Return the budgets that bound a step of a run; none if it is no loop."""
        return await budgets_of(self, run, step_id)

    async def of_run(self, plan: Plan | None, run: RunDocument) -> Spent:
        """Return what a run has used with those below it."""
        return await used(self, run, plan.steps if plan else {})

    async def run(self, run: str) -> RunDocument | None:
        """Return the document of a run as it is stored."""
        version = await self._documents.read(run)
        return version.run if version else None

    async def steps(self, run: RunDocument) -> Mapping[str, Step]:
        """Return the steps of a run."""
        plan = await self._plans.of_run(run)
        return plan.steps if plan else {}

    async def loop(self, address: RegisterAddress) -> Register | None:
        """Return the register of a loop; one that has ended is not kept in memory."""
        placed = await self._registers.read(address)
        if placed is not None and isinstance(placed.register, Ended):
            self._registers.forget(address)
        return placed.register if placed else None
