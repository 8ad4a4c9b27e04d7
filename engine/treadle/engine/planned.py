"""The plan of a run: its definition, extended by what its planners have planned.

A plan is the output of a planner's ended register, and the document says at which sequence that
stands. Neither ever changes, so a plan that was put together once is kept under those sequences.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

from treadle.engine.core.facts import StepEnded
from treadle.engine.core.plan import Plan
from treadle.engine.definitions import Definitions
from treadle.engine.inputs import Outputs
from treadle.engine.registers import Registers
from treadle.sdk.definition import PlannerStep
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Ended
from treadle.sdk.planned import extended
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import missing
from treadle.sdk.subjects import RegisterAddress

PLANS_MAX = 512
"""Extended plans that are kept, of at most a thousand steps each; others are put together anew."""

_Positions = tuple[tuple[str, int], ...]
"""Planners that have planned, each with the sequence of its ended register."""


class RunPlans:
    """The plans of the runs of a namespace."""

    def __init__(self, definitions: Definitions, registers: Registers, outputs: Outputs) -> None:
        self._definitions = definitions
        self._registers = registers
        self._outputs = outputs
        self._plans: OrderedDict[tuple[str, str, _Positions], Plan] = OrderedDict()

    async def of_run(self, run: RunDocument) -> Plan | None:
        """Return the plan of a run as its document stands; None if it is not registered.

        Raise ``StoredUnreadable`` if the definition or a plan cannot be read.
        """
        plan = await self._definitions.plan(run.workflow, run.definition)
        if plan is None or not plan.has_planners:
            return plan
        positions = {
            step_id: entry.position
            for step_id, entry in run.steps.items()
            if entry.status == "completed"
        }
        return await self._with(plan, run, positions)

    async def after(self, plan: Plan, run: RunDocument, fact: object) -> Plan:
        """Return the plan with what a planner has planned, if this fact says that it has."""
        if not plan.has_planners or not isinstance(fact, StepEnded) or fact.outcome != "completed":
            return plan
        if fact.step in plan.plans or not isinstance(plan.steps.get(fact.step), PlannerStep):
            return plan
        return await self._with(plan, run, {fact.step: fact.position})

    async def _with(self, plan: Plan, run: RunDocument, positions: dict[str, int]) -> Plan:
        """Return the plan with the plans of these steps, as far as they are planners in it."""
        while new := [
            step
            for step in plan.steps.values()
            if isinstance(step, PlannerStep) and step.id in positions and step.id not in plan.plans
        ]:
            try:
                plan = await self._extended(plan, run, new, positions)
            except StoredUnreadable:
                if not run.is_terminal:
                    raise
                break  # Its retention may be under way, which takes registers before documents.
        return plan

    async def _extended(
        self, plan: Plan, run: RunDocument, new: Iterable[PlannerStep], positions: dict[str, int]
    ) -> Plan:
        known = {**plan.positions, **{step.id: positions[step.id] for step in new}}
        key = (run.workflow, plan.hash, tuple(sorted(known.items())))
        kept = self._plans.get(key)
        if kept is not None:
            self._plans.move_to_end(key)
            return kept
        outputs = {step.id: await self._output(run, step) for step in new}
        definition, plans = extended(plan.definition, outputs)
        made = Plan(definition, plan.hash, {**plan.plans, **plans}, known)
        self._plans[key] = made
        if len(self._plans) > PLANS_MAX:
            self._plans.popitem(last=False)
        return made

    async def _output(self, run: RunDocument, step: PlannerStep) -> bytes:
        address = RegisterAddress(run.domain, run.run, step.id, step.type)
        subject = self._registers.subject(address)
        kept = self._outputs.get(subject)
        if kept is not None:
            return kept
        placed = await self._registers.read(address)
        if placed is None or not isinstance(placed.register, Ended):
            raise missing(subject)
        self._registers.forget(address)
        self._outputs.put(subject, placed.register.output)
        return bytes(placed.register.output)
