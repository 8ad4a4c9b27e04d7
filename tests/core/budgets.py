"""The budget of a simulated run: what an engine finds when it asks, and what is promised of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from treadle.engine.core import Placed, budget
from treadle.engine.core.bounds import spent_by, task_of
from treadle.sdk.definition import AgentLoopStep
from treadle.sdk.messages import Ended, Register, ResumeRequested, SettleEvent, Task
from treadle.sdk.run_budgets import shared
from treadle.sdk.spending import NOTHING, SharedBudget, Spent, plus, reached

if TYPE_CHECKING:
    from tests.core.world import World


def spent(world: World, but: str = "") -> Spent:
    """Return what all loops of the run have told, except one."""
    total = NOTHING
    for step_id, placed in world.registers.items():
        if step_id != but and isinstance(world.plan.steps.get(step_id), AgentLoopStep):
            total = plus(total, _spent_by(placed.register))
    return total


def of_step(world: World, step_id: str) -> tuple[SharedBudget, ...]:
    """Return the budget that bounds a step, if it is a loop."""
    assert world.document is not None
    if not isinstance(world.plan.steps.get(step_id), AgentLoopStep):
        return ()
    return shared([(world.document, spent(world, but=step_id))])


def informed(world: World, step_id: str, placed: Placed, event: Any) -> Placed:
    """Return a loop's register that knows what the others have used."""
    register = placed.register
    is_asked = isinstance(event, SettleEvent | ResumeRequested)
    if isinstance(register, Ended) or not task_of(register).budgets or not is_asked:
        return placed
    return placed._replace(register=budget.informed(register, of_step(world, step_id)))


def check(world: World, step_id: str, new: Register) -> None:
    """Assert, before a register is stored, that a loop begins at most one iteration more once the
    budget is used up: by a verdict that was decided before."""
    assert world.document is not None
    if not reached(world.document.limits, spent(world)):
        world.begun_beyond.clear()
        return
    old = world.registers.get(step_id)
    if not isinstance(new, Task) or not new.loop or new.wrap_up:
        return
    before = old.register if old else None
    if isinstance(before, Ended | None) or task_of(before).iteration < new.iteration:
        world.begun_beyond[step_id] = world.begun_beyond.get(step_id, 0) + 1
        assert world.begun_beyond[step_id] == 1, "a loop began anew with the budget used up"


def _spent_by(register: Register) -> Spent:
    return register.spent if isinstance(register, Ended) else spent_by(task_of(register))
