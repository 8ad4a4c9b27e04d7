"""Definitions that change in the simulated world: planners plan, and versions are registered."""

from __future__ import annotations

from treadle.engine.core import Placed, Plan, RegisterEvent, is_live
from treadle.engine.core.advance import Work
from treadle.engine.core.bounds import task_of
from treadle.engine.core.versions import adopted, is_boundary
from treadle.sdk.definition import AgentLoopStep, PlannerStep, WorkflowDefinition, content_hash
from treadle.sdk.messages import Ended, Register, Task
from treadle.sdk.planned import extended
from treadle.sdk.versions import successor


def grown(plan: Plan, step_id: str, ended: Ended) -> Plan:
    """Return the run's plan, with what a planner has planned if one has ended."""
    is_planner = isinstance(plan.steps.get(step_id), PlannerStep)
    if not is_planner or ended.outcome != "completed" or step_id in plan.plans:
        return plan
    definition, plans = extended(plan.definition, {step_id: bytes(ended.output)})
    return Plan(definition, plan.hash, {**plan.plans, **plans})


class Newer:
    """The versions that were registered since the run was requested."""

    def __init__(self) -> None:
        self._versions: dict[str, WorkflowDefinition] = {}

    def register(self, definition: WorkflowDefinition) -> None:
        """Make a version the newest."""
        version = content_hash(definition)
        self._versions.pop(version, None)
        self._versions[version] = definition

    def at(self, step: Work, placed: Placed, event: RegisterEvent) -> tuple[Work, Placed]:
        """Return the step and its register as an event finds them."""
        register = placed.register
        if not is_live(register) or not isinstance(step, AgentLoopStep):
            return step, placed
        step = self._under(step, task_of(register))
        if not self._versions or not is_boundary(register, event):
            return step, placed
        version, newest = next(reversed(self._versions.items()))
        found = successor(newest, step.id, step.type)
        if found is None:
            return step, placed
        return found, Placed(placed.sequence, adopted(register, step, found, version))

    def first(self, step: Work, register: Register) -> Register:
        """Return the first value of a step: of a loop that follows, under the newest version."""
        if not self._versions or not is_live(register) or not task_of(register).follows:
            return register
        version, newest = next(reversed(self._versions.items()))
        found = successor(newest, step.id, step.type)
        if found is None or not isinstance(step, AgentLoopStep):
            return register
        return adopted(register, step, found, version)

    def _under(self, step: AgentLoopStep, task: Task) -> AgentLoopStep:
        """Return the step under the version of its task."""
        known = self._versions.get(task.definition)
        return (successor(known, step.id, step.type) if known else None) or step
