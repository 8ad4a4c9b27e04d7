"""What a register means to the run's document, as an engine tells it. Pure."""

from __future__ import annotations

from collections.abc import Mapping

from treadle.engine.core import Placed, RunEvent, StepEnded, StepParked, StepResumed, bounds
from treadle.engine.core.advance import is_still
from treadle.sdk.messages import (
    Delayed,
    Ended,
    MessageSent,
    Parked,
    Queued,
    Register,
    ResumeRequested,
    Sleeping,
    Task,
    TaskLost,
    TimerFired,
)
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import RegisterAddress

MOVES = ResumeRequested | MessageSent | TimerFired
"""What moves a parked step on."""


def fact_of(step_id: str, placed: Placed, *, is_moved: bool) -> RunEvent | None:
    """Return the fact, if there is one; ``is_moved`` if the step was parked before."""
    new, position = placed.register, placed.sequence
    match new:
        case Ended():
            return StepEnded(
                step_id,
                new.outcome,
                new.iterations,
                new.failure,
                new.parent,
                position,
                new.spent,
                new.chunk,
            )
        case Parked(paused=True):
            return None
        case Parked(line=line) if line:
            return None  # It waits for its turn, as it would for a worker.
        case Parked():
            task = new.task
            return StepParked(
                step_id,
                new.reason,
                task.counted,
                new.parent,
                position,
                new.waits,
                bounds.spent_by(task),
                new.failure,
            )
        case _:
            return StepResumed(step_id, new.parent, position) if is_moved else None


def missed(step_id: str, placed: Placed, run: RunDocument | None) -> RunEvent | None:
    """Return the fact of a step that moves and is believed parked: an engine died before it."""
    entry = run.steps.get(step_id) if run else None
    if entry is None or entry.status != "parked" or is_still(placed.register):
        return None
    return StepResumed(step_id, placed.register.parent, placed.sequence)


def iterations_of(register: Register) -> int:
    """Return how many iterations of the step are committed."""
    match register:
        case Ended():
            return register.iterations
        case Task():
            return register.counted
        case Queued() | Delayed() | Sleeping() | Parked():
            return register.task.counted


def lost_of(address: RegisterAddress, token: int, task: Task) -> TaskLost:
    """Return the report that a dead worker held a task."""
    return TaskLost(
        step=address.step,
        type=address.type,
        token=token,
        iteration=task.iteration,
        attempt=task.attempt,
    )


def stopped_at_once(
    run: RunDocument, step_id: str, registers: Mapping[str, Placed]
) -> list[StepEnded | StepParked]:
    """Return what there is to hear of a step that was stopped before its first task."""
    placed, entry = registers[step_id], run.steps.get(step_id)
    if entry is None or placed.register.parent != entry.event:
        return []
    fact = fact_of(step_id, placed, is_moved=False)
    return [fact] if isinstance(fact, StepEnded | StepParked) else []
