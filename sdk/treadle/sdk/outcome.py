"""Whose outputs are the result of a completed run, or of a plan. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from treadle.sdk.definition import RespondStep, Step, WorkflowDefinition
from treadle.sdk.run import RunDocument

T = TypeVar("T")


class Outcome(NamedTuple):
    """The steps whose outputs are a run's result."""

    steps: tuple[Step, ...]
    is_single: bool
    """The result is the output itself; else an object of the outputs by step id."""


class Ends(NamedTuple):
    """The steps whose outputs may be a result."""

    last: tuple[Step, ...]
    """Steps that no other waits for."""
    handlers: tuple[Step, ...]
    """Steps that handle a failure, and that no other waits for."""


def ends_of(steps: Sequence[Step]) -> Ends:
    """Return the ends of a graph of steps."""
    awaited = _awaited(steps)
    handlers = {step.on_failure for step in steps if step.on_failure}
    undoing = {step.compensate for step in steps if step.compensate}
    others = awaited | handlers | undoing
    return Ends(
        tuple(step for step in steps if step.id not in others),
        tuple(step for step in steps if step.id in handlers - awaited),
    )


def outcome_of(definition: WorkflowDefinition, run: RunDocument) -> Outcome:
    """Return the steps that no other waits for; of those that handle a failure, those that did.

    If there is one such step, it is its output, or that of the one which handled a failure instead
    of it. Null stands for what a skipped step would have put out. A response at the end stands for
    what it waits for.
    """

    def has_completed(step: Step) -> bool:
        entry = run.steps.get(step.id)
        return entry is not None and entry.status == "completed"

    return Outcome(*chosen(*ends_of(definition.steps), has_completed))


def chosen(
    last: Sequence[T], handlers: Sequence[T], has_completed: Callable[[T], bool]
) -> tuple[tuple[T, ...], bool]:
    """Return whose outputs the result is, and whether it is the output of that one."""
    handled = tuple(step for step in handlers if has_completed(step))
    if len(last) != 1:
        return (*last, *handled), False
    instead = len(handled) == 1 and not has_completed(last[0])
    return (handled if instead else tuple(last)), True


def _awaited(steps: Sequence[Step]) -> set[str]:
    """Return the steps that others wait for; a response at the end counts as one of them."""
    left = list(steps)
    over: set[str] = set()
    while True:
        awaited = {name for step in left for name in step.after}
        ends = {step.id for step in left if isinstance(step, RespondStep)} - awaited
        if not ends or len(ends) == len(left):
            return awaited | over
        over |= ends
        left = [step for step in left if step.id not in ends]
