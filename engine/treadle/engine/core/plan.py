"""A definition, indexed for the questions the core asks of it."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter

from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    ChoiceStep,
    EventStep,
    MapStep,
    RespondStep,
    SignalStep,
    SleepStep,
    Step,
    TaskStep,
    WorkflowDefinition,
    WorkStep,
)
from treadle.sdk.subjects import step_of

DELAY_BY_WORKER_MS_MAX = 30_000
"""Longer delays are slept in the timers stream: a delayed task occupies a place in a consumer's
pending list, and schedules are only 0 to 250 ms late, which no long delay feels."""


class Plan:
    """An immutable view of one definition: steps by id, what follows each, timers."""

    __slots__ = (
        "compensations",
        "definition",
        "followers",
        "handles",
        "has_decisions",
        "hash",
        "may_set_timers",
        "order",
        "roots",
        "steps",
        "waited_before",
    )

    def __init__(self, definition: WorkflowDefinition, content_hash: str) -> None:
        self.definition = definition
        self.hash = content_hash
        self.steps: dict[str, Step] = {step.id: step for step in definition.steps}
        self.handles: dict[str, tuple[str, ...]] = {}
        """By a step that starts when others fail: which."""
        waiting: dict[str, list[Step]] = {step.id: [] for step in definition.steps}
        for step in definition.steps:
            if step.on_failure:
                self.handles[step.on_failure] = (*self.handles.get(step.on_failure, ()), step.id)
            for other in step.after:
                waiting[other].append(step)
        for step in definition.steps:
            if step.on_failure:
                waiting[step.id].append(self.steps[step.on_failure])
        self.followers: dict[str, tuple[Step, ...]] = {
            step_id: tuple(steps) for step_id, steps in waiting.items()
        }
        """What may start or be skipped when a step is over."""
        self.has_decisions = definition.output_schema is not None or any(
            is_decided(step) for step in definition.steps
        )
        """Something has to be asked of stored values, at the turn of a step or at the end."""
        self.compensations = {
            step.compensate: step.id for step in definition.steps if step.compensate
        }
        """By a step that undoes another one: which."""
        self.order = {step_id: place for place, step_id in enumerate(_sorted(definition))}
        """Each step's place in an order in which none comes before what it waits for."""
        self.roots = tuple(
            step
            for step in definition.steps
            if not step.after and step.id not in self.handles.keys() | self.compensations.keys()
        )
        self.waited_before = {
            step.id: tuple(self._waited_before(step))
            for step in definition.steps
            if isinstance(step, EventStep)
        }
        """By a step that waits for an event: the steps before it that wait for the same one."""
        self.may_set_timers = definition.timeout_s > 0 or any(
            _may_set_timers(step) for step in definition.steps
        )

    def _waited_before(self, step: EventStep) -> Iterator[str]:
        before, left = set[str](), [*step.after]
        while left:
            name = left.pop()
            if name not in before:
                before.add(name)
                left.extend(self.steps[name].after)
        for name in sorted(before):
            other = self.steps[name]
            if isinstance(other, EventStep) and other.event == step.event:
                yield name

    def work(self, step_id: str) -> TaskStep | AgentLoopStep:
        """Return a step that is one task at a time; raise ``KeyError`` for any other.

        A chunk of a map is a task of its own: its id names the map and its number.
        """
        step = self.steps[step_of(step_id)]
        if isinstance(step, MapStep) and step.id != step_id:
            return TaskStep(id=step_id, type=step.type, timeout_s=step.timeout_s, retry=step.retry)
        if not isinstance(step, WorkStep):
            raise KeyError(step_id)
        return step


def is_decided(step: Step) -> bool:
    """True if something is asked of stored values before the step begins."""
    has_schema = isinstance(step, WorkStep) and step.input_schema is not None
    return bool(step.when) or isinstance(step, ChoiceStep | MapStep) or has_schema


def _sorted(definition: WorkflowDefinition) -> tuple[str, ...]:
    return tuple(
        TopologicalSorter({step.id: step.after for step in definition.steps}).static_order()
    )


def _may_set_timers(step: Step) -> bool:
    match step:
        case SignalStep() | EventStep() | ApprovalStep():
            return step.timeout_s > 0
        case SleepStep():
            return True
        case ChoiceStep() | RespondStep():
            return False
        case TaskStep() | MapStep():
            # Whatever the policy says: a handler may ask for any delay with its failure,
            return step.retry.max_attempts > 1
        case AgentLoopStep():
            # or with its output; a resume and a wrap-up set deadlines too.
            return True
