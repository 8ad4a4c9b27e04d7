"""A definition, indexed for the questions the core asks of it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from graphlib import TopologicalSorter

from treadle.sdk.cancel_on import cancels_of
from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    ChoiceStep,
    EventStep,
    MapStep,
    PlannerStep,
    RespondStep,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    TaskStep,
    WorkflowDefinition,
    WorkStep,
    has_keys,
)
from treadle.sdk.given import Graph
from treadle.sdk.planned import Planned
from treadle.sdk.subjects import step_of

DELAY_BY_WORKER_MS_MAX = 30_000
"""Longer delays are slept in the timers stream: a delayed task occupies a place in a consumer's
pending list, and schedules are only 0 to 250 ms late, which no long delay feels."""


class Plan(Graph):
    """An immutable view of one definition: steps by id, what follows each, timers.

    Of a run whose planners have planned, the definition is extended by ``plans``, by planner.
    """

    __slots__ = (
        "cancels",
        "followers",
        "has_decisions",
        "has_planners",
        "hash",
        "may_set_timers",
        "order",
        "positions",
        "roots",
        "waited_before",
    )

    def __init__(
        self,
        definition: WorkflowDefinition,
        content_hash: str,
        plans: Mapping[str, Planned] | None = None,
        positions: Mapping[str, int] | None = None,
    ) -> None:
        super().__init__(definition, plans)
        self.hash = content_hash
        self.positions: Mapping[str, int] = positions or {}
        """By a planner that has planned: the sequence at which its plan is stored."""
        self.has_planners = any(isinstance(step, PlannerStep) for step in definition.steps)
        waiting: dict[str, list[Step]] = {step.id: [] for step in definition.steps}
        for step in definition.steps:
            for other in step.after:
                waiting[other].append(step)
        for step in definition.steps:
            if step.on_failure:
                waiting[step.id].append(self.steps[step.on_failure])
        for planner, plan in self.plans.items():
            # What waits for the planner waits for these; a planner comes before those it planned.
            for end in (*plan.last, *plan.handlers):
                waiting[end].extend(self._outside(planner, waiting[planner]))
        self.followers: dict[str, tuple[Step, ...]] = {
            step_id: tuple(steps) for step_id, steps in waiting.items()
        }
        """What may start or be skipped when a step is over."""
        self.has_decisions = definition.output_schema is not None or any(
            is_decided(step) for step in definition.steps
        )
        """Something has to be asked of stored values, at the turn of a step or at the end."""
        self.order = {step_id: place for place, step_id in enumerate(self._sorted())}
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
        self.cancels = cancels_of(definition)
        """What each run waits for, besides its steps, to be cancelled by."""
        self.may_set_timers = definition.timeout_s > 0 or any(
            _may_set_timers(step) for step in definition.steps
        )

    def awaited(self, wait: str) -> EventStep:
        """Return what a step waits for, or what the run does to be cancelled by."""
        step = self.cancels.get(wait) or self.steps[wait]
        assert isinstance(step, EventStep)
        return step

    def _waited_before(self, step: EventStep) -> Iterator[str]:
        before, left = set[str](), [*step.after]
        while left:
            name = left.pop()
            if name not in before:
                before.add(name)
                left.extend(self.steps[name].after)
                # The plan of a planner is before what waits for it, and not before its own steps.
                if name in self.plans and self.planner_of.get(step.id) != name:
                    left.extend((*self.plans[name].last, *self.plans[name].handlers))
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
            # Its limits are in its tasks, like those of any step.
            return TaskStep(
                id=step_id,
                type=step.type,
                timeout_s=step.timeout_s,
                retry=step.retry,
                metadata=step.metadata,
            )
        if not isinstance(step, WorkStep):
            raise KeyError(step_id)
        return step

    def outside(self, planner: str) -> tuple[Step, ...]:
        """Return what follows a planner and is no step of its plan."""
        return tuple(self._outside(planner, self.followers[planner]))

    def _outside(self, planner: str, followers: Iterable[Step]) -> list[Step]:
        return [step for step in followers if self.planner_of.get(step.id) != planner]

    def _sorted(self) -> tuple[str, ...]:
        after = {step.id: set(step.after) for step in self.definition.steps}
        for planner, plan in self.plans.items():
            for step in self.outside(planner):
                after[step.id].update(plan.last, plan.handlers)
        return tuple(TopologicalSorter(after).static_order())


def is_decided(step: Step) -> bool:
    """True if something is asked of stored values before the step begins."""
    has_schema = isinstance(step, WorkStep) and step.input_schema is not None
    is_told = isinstance(step, SleepStep) and step.is_told
    is_asked = bool(step.when) or isinstance(step, ChoiceStep | MapStep) or is_told
    return is_asked or has_schema or has_keys(step)


def _may_set_timers(step: Step) -> bool:
    match step:
        case SignalStep() | EventStep() | ApprovalStep():
            return step.timeout_s > 0
        case SleepStep():
            return True
        case ChoiceStep() | RespondStep():
            return False
        case SubWorkflowStep():
            return step.retry.max_attempts > 1
        case TaskStep() | MapStep() if step.rate_limits:
            return True
        case TaskStep() | MapStep():
            # Whatever the policy says: a handler may ask for any delay with its failure,
            return step.retry.max_attempts > 1
        case AgentLoopStep():
            # or with its output; a resume and a wrap-up set deadlines too.
            return True
