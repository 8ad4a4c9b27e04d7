"""A run that was forked: what it takes over stands in its first document, and the rest begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec

from treadle.engine.core.plan import Plan
from treadle.engine.core.turns import not_begun
from treadle.sdk.definition import ChoiceStep, Step
from treadle.sdk.messages import Fork, OutcomeKept, StepGiven, Task
from treadle.sdk.run import RunDocument, StepEntry


class Taken(NamedTuple):
    """How a step that is kept ended, and where its register stands; 0 is none."""

    outcome: OutcomeKept
    position: int = 0


def entries_of(fork: Fork, kept: Mapping[str, Taken]) -> dict[str, StepEntry]:
    """Return the entries of the steps that are not executed again."""
    return {
        step_id: StepEntry(
            outcome.outcome,
            iterations=outcome.iterations,
            started_ms=outcome.started_ms,
            ended_ms=outcome.ended_ms,
            event=f"e{fork.kept[step_id]}",
            failure=outcome.failure,
            position=outcome.published or position,
        )
        for step_id, (outcome, position) in kept.items()
    }


def taken_over(plan: Plan, run: RunDocument, fork: Fork, kept: Mapping[str, Taken]) -> RunDocument:
    """Return the run with the steps that it takes over; ``plan`` has those that were planned."""
    known = {step_id: taken for step_id, taken in kept.items() if step_id in plan.steps}
    chosen = {
        step_id: msgspec.json.decode(outcome.output, type=str)
        for step_id, (outcome, _) in known.items()
        if isinstance(plan.steps[step_id], ChoiceStep) and outcome.outcome == "completed"
    }
    return msgspec.structs.replace(run, steps=entries_of(fork, known), chosen=chosen)


def first_steps(plan: Plan, run: RunDocument) -> tuple[Step, ...]:
    """Return the steps that may begin first: of a run that was forked, whatever it has not."""
    return plan.roots if run.fork is None else not_begun(plan, run)


def given_task(given: StepGiven, *, has_saved: bool) -> Callable[[Task], Task]:
    """Return what makes the first task of a step that begins with what it is given."""

    def begins(task: Task) -> Task:
        return msgspec.structs.replace(
            task,
            iteration=given.iteration,
            spent=given.spent,
            checkpoint=-1 if has_saved else 0,
        )

    return begins
