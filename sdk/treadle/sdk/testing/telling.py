"""What a register that has moved tells the run, in the simulated world."""

from __future__ import annotations

from treadle.engine.core import Placed, StepEnded, StepParked, StepResumed, bounds
from treadle.engine.core.moment import Moment
from treadle.sdk.messages import Ended, Parked, Register


def told(
    name: str, before: Register, placed: Placed, moment: Moment
) -> StepEnded | StepParked | StepResumed | None:
    """Return the fact that the move of a register is; None if it concerns nobody else."""
    new, position = placed.register, placed.sequence
    match new:
        case Ended():
            return StepEnded(
                name,
                new.outcome,
                new.iterations,
                new.failure,
                moment.id,
                position,
                new.spent,
                new.chunk,
            )
        case Parked(paused=True):
            return None
        case Parked():
            task, spent = new.task, bounds.spent_by(new.task)
            iteration = task.iteration
            return StepParked(name, new.reason, iteration, moment.id, position, new.waits, spent)
        case _:
            return StepResumed(name, moment.id, position) if isinstance(before, Parked) else None
