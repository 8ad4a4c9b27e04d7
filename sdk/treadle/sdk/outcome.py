"""Whose outputs are the result of a completed run. Pure."""

from __future__ import annotations

from typing import NamedTuple

from treadle.sdk.definition import RespondStep, Step, WorkflowDefinition
from treadle.sdk.run import RunDocument


class Outcome(NamedTuple):
    """The steps whose outputs are a run's result."""

    steps: tuple[Step, ...]
    is_single: bool
    """The result is the output itself; else an object of the outputs by step id."""


def outcome_of(definition: WorkflowDefinition, run: RunDocument) -> Outcome:
    """Return the steps that no other waits for; of those that handle a failure, those that did.

    If there is one such step, it is its output, or that of the one which handled a failure instead
    of it. Null stands for what a skipped step would have put out. A response at the end stands for
    what it waits for.
    """
    awaited = _awaited(definition)
    handlers = {step.on_failure for step in definition.steps if step.on_failure}
    undoing = {step.compensate for step in definition.steps if step.compensate}
    others = awaited | handlers | undoing
    last = tuple(step for step in definition.steps if step.id not in others)
    handled = tuple(
        step
        for step in definition.steps
        if step.id in handlers - awaited and _has_completed(run, step)
    )
    if len(last) > 1:
        return Outcome((*last, *handled), False)
    has_completed = all(_has_completed(run, step) for step in last)
    return Outcome(last if has_completed or len(handled) != 1 else handled, True)


def _awaited(definition: WorkflowDefinition) -> set[str]:
    """Return the steps that others wait for; a response at the end counts as one of them."""
    left = list(definition.steps)
    over: set[str] = set()
    while True:
        awaited = {name for step in left for name in step.after}
        ends = {step.id for step in left if isinstance(step, RespondStep)} - awaited
        if not ends or len(ends) == len(left):
            return awaited | over
        over |= ends
        left = [step for step in left if step.id not in ends]


def _has_completed(run: RunDocument, step: Step) -> bool:
    entry = run.steps.get(step.id)
    return entry is not None and entry.status == "completed"
