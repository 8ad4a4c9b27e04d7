"""Whose outputs are the result of a completed run. Pure."""

from __future__ import annotations

from typing import NamedTuple

from treadle.sdk.definition import Step, WorkflowDefinition
from treadle.sdk.run import RunDocument


class Outcome(NamedTuple):
    """The steps whose outputs are a run's result."""

    steps: tuple[Step, ...]
    is_single: bool
    """The result is the output itself; else an object of the outputs by step id."""


def outcome_of(definition: WorkflowDefinition, run: RunDocument) -> Outcome:
    """Return the steps that no other waits for; of those that handle a failure, those that did.

    If there is one such step, it is its output, or that of the one which handled a failure instead
    of it. Null stands for what a skipped step would have put out.
    """
    awaited = {name for step in definition.steps for name in step.after}
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


def _has_completed(run: RunDocument, step: Step) -> bool:
    entry = run.steps.get(step.id)
    return entry is not None and entry.status == "completed"
