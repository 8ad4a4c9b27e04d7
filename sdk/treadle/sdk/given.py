"""What a step of a run is given: the outputs of those before it, a failure, what a plan says. Pure.

Engines, clients and the in-memory runner put inputs together by what is said here, so that people
are shown what a worker was given.
"""

from __future__ import annotations

from collections.abc import Mapping

from treadle.sdk.definition import Step, WorkflowDefinition
from treadle.sdk.failed_step import FailedStep
from treadle.sdk.planned import Planned, own_of
from treadle.sdk.planners import SEPARATOR
from treadle.sdk.plans import failed_in, result_of
from treadle.sdk.run import RunDocument
from treadle.sdk.shape import GIVEN, Shape


class Graph:
    """The steps of a run by id, and how they hang together.

    The definition is that of the run, extended by ``plans``, by planner.
    """

    __slots__ = ("compensations", "definition", "handles", "own", "planner_of", "plans", "steps")

    def __init__(
        self, definition: WorkflowDefinition, plans: Mapping[str, Planned] | None = None
    ) -> None:
        self.definition = definition
        self.plans: Mapping[str, Planned] = plans or {}
        self.own = own_of(definition, self.plans)
        """The definition without what was planned."""
        self.steps: dict[str, Step] = {step.id: step for step in definition.steps}
        self.handles: dict[str, tuple[str, ...]] = {}
        """By a step that starts when others fail: which."""
        for step in definition.steps:
            if step.on_failure:
                self.handles[step.on_failure] = (*self.handles.get(step.on_failure, ()), step.id)
        self.compensations = {
            step.compensate: step.id for step in definition.steps if step.compensate
        }
        """By a step that undoes another one: which."""
        self.planner_of = {
            step_id: planner for planner, plan in self.plans.items() for step_id in plan.names
        }
        """By a step that was planned: the planner."""

    def name_of(self, step_id: str) -> str:
        """Return a step's id as those see it that wait for it: in a plan, the plan's own."""
        planner = self.planner_of.get(step_id)
        return self.plans[planner].names[step_id] if planner else step_id

    def label_of(self, step_id: str) -> str:
        """Return a step's id where there must not be one for each plan: ``<planner>--*``."""
        origin = step_id
        while planner := self.planner_of.get(origin):
            origin = planner
        return step_id if origin == step_id else f"{origin}{SEPARATOR}*"


def shape_of(graph: Graph, run: RunDocument, step: Step) -> Shape | None:
    """Return what a step is given, put together from outputs; None means the run's input."""
    planner = graph.planner_of.get(step.id)
    inputs: Mapping[str, bytes] = graph.plans[planner].inputs if planner else {}
    given = f"{GIVEN}{step.id}"
    if planner and step.after == (planner,):
        # The first of a plan are given what the planner was, unless the plan says otherwise.
        return given if step.id in inputs else shape_of(graph, run, graph.steps[planner])
    undone = graph.compensations.get(step.id)
    after = (undone,) if undone else step.after
    shapes = {graph.name_of(other): result_of(graph.plans, run, other) for other in after}
    if step.id in inputs:
        return {"input": given, "steps": shapes} if shapes else given
    return next(iter(shapes.values())) if len(shapes) == 1 else shapes or None


def asked_of(graph: Graph, run: RunDocument, step: Step) -> dict[str, Shape]:
    """Return the outputs that a step's condition is asked over, by the ids it has for them."""
    planner = graph.planner_of.get(step.id)
    after = () if planner and step.after == (planner,) else step.after
    return {graph.name_of(other): result_of(graph.plans, run, other) for other in after}


def given_by(graph: Graph, leaf: str) -> bytes | None:
    """Return what a plan gives a step, for such a leaf of a shape; None for an output's."""
    if not leaf.startswith(GIVEN):
        return None
    step_id = leaf.removeprefix(GIVEN)
    return graph.plans[graph.planner_of[step_id]].inputs[step_id]


def failed_before(graph: Graph, run: RunDocument, step: Step) -> FailedStep | None:
    """Return the failure because of which a step runs; None for a step that handles none."""
    for step_id in graph.handles.get(step.id, ()):
        failed = failed_in(graph.plans, run, step_id)
        entry = run.steps.get(failed)
        if entry is not None and entry.failure is not None:
            return FailedStep(failed, entry.failure)
    return None
