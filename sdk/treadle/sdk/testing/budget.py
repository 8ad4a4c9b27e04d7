"""What simulated runs have used of their budgets, as an engine's ledger sums it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from treadle.engine.core import Placed, budget
from treadle.engine.core.advance import is_live
from treadle.engine.core.bounds import spent_by, task_of
from treadle.sdk.definition import AgentLoopStep, SubWorkflowStep
from treadle.sdk.messages import Ended, Event, Register, ResumeRequested, SettleEvent
from treadle.sdk.run import RunDocument
from treadle.sdk.run_budgets import is_bounded, shared
from treadle.sdk.spending import NOTHING, SharedBudget, Spent, plus

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World


def informed(world: World, step_id: str, placed: Placed, event: Event) -> Placed:
    """Return a register that knows what the others have used, if an event asks for that."""
    register = placed.register
    if not is_live(register) or not task_of(register).budgets:
        return placed
    if not isinstance(event, SettleEvent | ResumeRequested):
        return placed
    return placed._replace(register=budget.informed(register, of_step(world, step_id)))


def of_step(world: World, step_id: str) -> tuple[SharedBudget, ...]:
    """Return the budgets that bound a step, if it is a loop."""
    is_loop = isinstance(world.plan.steps[step_id], AgentLoopStep)
    if world.run is None or not is_loop or not is_bounded(world.run):
        return ()
    return shared(_levels(world, step_id))


def _levels(world: World, step_id: str) -> Iterator[tuple[RunDocument, Spent]]:
    run, own = world.run, NOTHING
    while run is not None:
        yield run, plus(own, used(world, step_id))
        if run.parent is None or not run.parent.bounded:
            return
        world, step_id = world.family.worlds[run.parent.run], run.parent.step
        run = world.run
        own = run.steps[step_id].spent if run and step_id in run.steps else NOTHING


def used(world: World, but: str = "") -> Spent:
    """Return what all steps of a run have used, with the runs below it, except one step."""
    total, run = NOTHING, world.run
    for step_id, entry in (run.steps if run else {}).items():
        if step_id == but:
            continue
        spent, step = entry.spent, world.plan.steps[step_id]
        placed = world.registers.get(step_id)
        if isinstance(step, AgentLoopStep) and placed is not None:
            spent = _spent_by(placed.register)
        elif isinstance(step, SubWorkflowStep) and not step.detached:
            is_told = entry.status not in ("active", "cancelled")
            below = None if is_told else world.family.below(world, step_id)
            spent = plus(spent, used(below) if below is not None else NOTHING)
        total = plus(total, spent)
    return total


def _spent_by(register: Register) -> Spent:
    return register.spent if isinstance(register, Ended) else spent_by(task_of(register))
