"""Which steps of a run a fork of it takes over, and which begin again. Pure.

a retry       begins with the step that failed; whatever has completed is kept
a fork        begins with a step, and with whatever depends on it
both          begin again with what was undone, and with whatever depends on that
another version   begins with steps that it has otherwise, and with whatever depends on them
"""

from __future__ import annotations

from collections.abc import Iterable

from treadle.sdk.given import Graph
from treadle.sdk.run import RunDocument, StepEntry

KEPT = frozenset({"completed", "skipped", "failed"})


def kept_steps(old: Graph, new: Graph, run: RunDocument, start: str = "") -> dict[str, StepEntry]:
    """Return the entries that a fork from ``start`` takes over; '' is a retry.

    Both graphs have the steps that the run's planners have planned.
    """
    return _kept(old, new, run, start, depends_on(old, _undone(old, run)))


def repeated_steps(old: Graph, new: Graph, run: RunDocument, start: str = "") -> tuple[str, ...]:
    """Return the completed steps that such a fork executes again only because they were undone, or
    depend on one that was."""
    kept = kept_steps(old, new, run, start)
    if_not_undone = _kept(old, new, run, start, set())
    return tuple(step for step in if_not_undone if step not in kept and _done(run, step))


def _kept(
    old: Graph, new: Graph, run: RunDocument, start: str, again: set[str]
) -> dict[str, StepEntry]:
    if run.failed_step:
        behind = depends_on(old, (run.failed_step,))
        again = again | {step for step in behind if step == run.failed_step or not _done(run, step)}
    if start:
        again |= depends_on(old, (start,))
    changed = [
        step_id
        for step_id, step in new.steps.items()
        if step_id in run.steps and step != old.steps.get(step_id)
    ]
    again |= depends_on(new, changed)
    never = old.compensations.keys()
    return {
        step_id: entry
        for step_id, entry in run.steps.items()
        if entry.status in KEPT and step_id in new.steps.keys() - again - never
    }


def depends_on(graph: Graph, starts: Iterable[str]) -> set[str]:
    """Return these steps, and all whose turn depends on them."""
    followers: dict[str, set[str]] = {step_id: set() for step_id in graph.steps}
    for step in graph.steps.values():
        for other in step.after:
            followers[other].add(step.id)
        if step.on_failure:
            followers[step.id].add(step.on_failure)
    for planner, plan in graph.plans.items():
        # What waits for a planner waits for its plan.
        outside = {each for each in followers[planner] if graph.planner_of.get(each) != planner}
        for step_id in plan.names:
            followers[step_id] |= outside
    found: set[str] = set()
    waiting = [step_id for step_id in starts if step_id in followers]
    while waiting:
        step_id = waiting.pop()
        if step_id not in found:
            found.add(step_id)
            waiting.extend(followers[step_id])
    return found


def _done(run: RunDocument, step_id: str) -> bool:
    entry = run.steps.get(step_id)
    return entry is not None and entry.status == "completed"


def _undone(graph: Graph, run: RunDocument) -> list[str]:
    """Return the steps whose compensations have begun."""
    return [
        undone
        for compensation, undone in graph.compensations.items()
        if (entry := run.steps.get(compensation)) is not None and entry.status != "skipped"
    ]
