"""The edges of a definition: unknown steps, cycles, and steps that could never start."""

from __future__ import annotations

import graphlib
from collections.abc import Iterator

from treadle.sdk import wording
from treadle.sdk.definition import ChoiceStep, MapStep, Step, WorkflowDefinition, WorkStep, has_keys
from treadle.sdk.errors import Problem
from treadle.sdk.limits import CYCLES_MAX, EDGES_MAX
from treadle.sdk.wording import Suggestions


def problems_of_edges(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield every problem of the ``after`` lists."""
    edges = sum(len(step.after) for step in definition.steps)
    if edges > EDGES_MAX:
        yield Problem(
            "steps",
            f"the after lists have {edges} entries together, and {EDGES_MAX} are allowed, because "
            "they are looked at whenever a step ends. Let one step gather the others.",
        )
        return
    yield from _unknown(definition)
    yield from _handlers(definition)
    yield from _compensations(definition)
    graph = _Graph(definition.steps)
    yield from graph.cycles()
    yield from graph.unreachable()


def _unknown(definition: WorkflowDefinition) -> Iterator[Problem]:
    known = {step.id for step in definition.steps}
    suggestions = Suggestions()
    for i, step in enumerate(definition.steps):
        named: set[str] = set()
        for j, other in enumerate(step.after):
            path = wording.item(f"steps[{i}].after", j)
            waits = f"step {wording.shown(step.id)} waits for {wording.shown(other)}"
            if other in named:
                yield Problem(path, f"{waits} twice. Remove one of the two.")
            elif other not in known:
                nearest = suggestions.nearest(other, known - {step.id})
                remedy = f"Did you mean {nearest!r}?" if nearest else "Add it, or correct after."
                yield Problem(path, f"{waits}, which is not a step. {remedy}")
            named.add(other)


def _named(
    definition: WorkflowDefinition, field: str, itself: str
) -> Iterator[tuple[str, Step, Step] | Problem]:
    """Yield each step that names one in a field: path, step and the other; or what is wrong.

    ``itself`` is why that cannot be the step itself.
    """
    known = {step.id: step for step in definition.steps}
    suggestions = Suggestions()
    for i, step in enumerate(definition.steps):
        name: str = getattr(step, field)
        if not name:
            continue
        path, named = f"steps[{i}].{field}", f"step {wording.shown(name)}"
        other = known.get(name)
        if other is None:
            nearest = suggestions.nearest(name, known.keys() - {step.id})
            remedy = f"Did you mean {nearest!r}?" if nearest else "Add it."
            yield Problem(path, f"{named} is not a step of this workflow. {remedy}")
        elif other is step:
            yield Problem(path, f"{named} {itself}")
        else:
            yield path, step, other


def _handlers(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield the problems of the steps that start when another one has failed."""
    itself = "cannot start because of its own failure. Name another."
    for found in _named(definition, "on_failure", itself):
        if isinstance(found, Problem):
            yield found
            continue
        path, _, handler = found
        if isinstance(handler, MapStep):
            yield Problem(
                path,
                f"step {wording.shown(handler.id)} is a map and would be given a failure, which is "
                "no list. Name a task, and let a map wait for it.",
            )
        if handler.after:
            yield Problem(
                path,
                f"step {wording.shown(handler.id)} starts when this step fails, and its after "
                "names other steps to wait for. Remove after from it; steps may wait for it.",
            )


def _compensations(definition: WorkflowDefinition) -> Iterator[Problem]:
    """Yield the problems of the steps that undo others."""
    undone: dict[str, str] = {}
    handlers = {step.on_failure for step in definition.steps}
    for found in _named(definition, "compensate", "cannot undo itself. Name another step."):
        if isinstance(found, Problem):
            yield found
            continue
        path, step, undoing = found
        named = f"step {wording.shown(undoing.id)}"
        first = undone.setdefault(undoing.id, step.id)
        if first != step.id:
            yield Problem(
                path,
                f"{named} undoes step {wording.shown(first)} already, and runs once. Add a step of "
                "its own for this one.",
            )
        elif (
            undoing.id in handlers
            or undoing.after
            or undoing.when
            or undoing.compensate
            or undoing.on_failure
            or has_keys(undoing)
        ):
            yield Problem(
                path,
                f"{named} runs only to undo this one, so it waits for nothing, handles no failure "
                "and has no when, on_failure, compensate or key of a limit. Remove that from it.",
            )
        elif isinstance(undoing, WorkStep) and undoing.input_schema is not None:
            yield Problem(
                path,
                f"{named} undoes what has completed whatever that put out, so its input is not "
                "checked. Remove input_schema from it; the step that it undoes may have an "
                "output_schema.",
            )
        elif isinstance(undoing, ChoiceStep):
            yield Problem(path, f"{named} is a choice, which undoes nothing. Name another step.")
    yield from _waits_for_undoing(definition)


def _waits_for_undoing(definition: WorkflowDefinition) -> Iterator[Problem]:
    undone = {step.compensate for step in definition.steps if step.compensate}
    for i, step in enumerate(definition.steps):
        for j, other in enumerate(step.after):
            if other in undone:
                yield Problem(
                    wording.item(f"steps[{i}].after", j),
                    f"step {wording.shown(other)} runs only when the run will not complete, so "
                    "nothing can wait for it. Remove it from after.",
                )


class _Graph:
    """Steps by id with what they wait for; of steps with one id, the first."""

    def __init__(self, steps: tuple[Step, ...]) -> None:
        self.index: dict[str, int] = {}
        self.after: dict[str, tuple[str, ...]] = {}
        """What a step waits for; of one that handles failures, the steps that may fail."""
        handled: dict[str, tuple[str, ...]] = {}
        for step in steps:
            if step.on_failure and step.on_failure != step.id:
                handled[step.on_failure] = (*handled.get(step.on_failure, ()), step.id)
        for i, step in enumerate(steps):
            if step.id not in self.index:
                self.index[step.id] = i
                self.after[step.id] = step.after or handled.get(step.id, ())
        self.handlers = {step.id for step in steps if not step.after and step.id in handled}
        self.blamed: set[str] = set()
        """Steps that cannot start for a reason that is already reported."""

    def path(self, step_id: str, other: str) -> str:
        """Return the path of the entry by which a step waits for another."""
        if step_id in self.handlers:
            return f"steps[{self.index[other]}].on_failure"
        return wording.item(f"steps[{self.index[step_id]}].after", self.after[step_id].index(other))

    def cycles(self) -> Iterator[Problem]:
        """Yield a problem for each wait that has to go for the graph to have no cycle."""
        waits = {
            step_id: [other for other in dict.fromkeys(after) if other in self.index]
            for step_id, after in self.after.items()
        }
        for _ in range(CYCLES_MAX):
            try:
                graphlib.TopologicalSorter(waits).prepare()
            except graphlib.CycleError as exc:
                circle = self._circle(exc.args[1][:-1])
            else:
                return
            self.blamed.update(circle)
            yield self._cycle(circle)
            waits[circle[0]].remove(circle[1])

    def _circle(self, members: list[str]) -> list[str]:
        """Return a cycle, each waiting for the next, from the step written first."""
        # In graphlib's order each is waited for by the next.
        members = members[::-1]
        start = min(range(len(members)), key=lambda i: self.index[members[i]])
        return members[start:] + members[: start + 1]

    def _cycle(self, circle: list[str]) -> Problem:
        path = self.path(circle[0], circle[1])
        if circle[0] == circle[1]:
            return Problem(
                path, f"step {wording.shown(circle[0])} waits for itself. Remove it from after."
            )
        chain = " -> ".join(wording.shown(step_id) for step_id in circle)
        return Problem(
            path,
            f"the steps {chain} wait for each other in a cycle, so none of them could start. "
            "Remove one of these waits.",
        )

    def unreachable(self) -> Iterator[Problem]:
        """Yield a problem for each further step that could never start."""
        for step_id, after in self.after.items():
            if any(other not in self.index for other in after):
                self.blamed.add(step_id)
        startable = self._startable()
        for step_id, after in self.after.items():
            if step_id in startable or step_id in self.blamed:
                continue
            cause = next(other for other in after if other not in startable)
            yield Problem(
                self.path(step_id, cause),
                f"step {wording.shown(step_id)} could never start: it waits for "
                f"{wording.shown(cause)}, which could not start either. Correct that step first.",
            )

    def _startable(self) -> set[str]:
        missing = {step_id: len(set(after)) for step_id, after in self.after.items()}
        dependents: dict[str, list[str]] = {}
        for step_id, after in self.after.items():
            for other in set(after):
                dependents.setdefault(other, []).append(step_id)
        ready = [step_id for step_id, count in missing.items() if count == 0]
        startable: set[str] = set()
        while ready:
            step_id = ready.pop()
            startable.add(step_id)
            for dependent in dependents.get(step_id, ()):
                missing[dependent] -= 1
                if missing[dependent] == 0:
                    ready.append(dependent)
        return startable
