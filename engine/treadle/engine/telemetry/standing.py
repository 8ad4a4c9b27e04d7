"""Where the runs stand: which are active, what ended, and in which nothing happens.

Pure. It is told of documents as they are stored; each step's and each run's end counts once.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass, field

from treadle.engine.core.plan import Plan
from treadle.engine.telemetry.instruments import Point
from treadle.sdk.definition import AgentLoopStep, Step, TypedStep
from treadle.sdk.run import RunDocument, StepEntry, is_kept
from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing import names

OVER_MAX = 20_000
"""Ended runs whose end is remembered to have been counted."""


@dataclass(slots=True)
class _Run:
    workflow: str
    status: str = ""
    active: tuple[str, ...] = ()
    """Task types of the steps under way."""
    closed: set[str] = field(default_factory=set[str])
    moved_us: int = 0


class Standing:
    """The runs of a namespace. ``since_ms``: what was over before, others have counted."""

    def __init__(self, since_ms: int) -> None:
        self._since_ms = since_ms
        self._runs: dict[str, _Run] = {}
        self._over: OrderedDict[str, None] = OrderedDict()
        self._counts: Counter[tuple[str, str]] = Counter()
        self._tasks: Counter[str] = Counter()

    def document(
        self, run: RunDocument, plan: Plan | None, at_us: int, *, is_old: bool = False
    ) -> list[Point]:
        """Take note of a document; return what it counts for, nothing if it ``is_old``."""
        if run.run in self._over:
            return []
        points: list[Point] = []
        known = self._runs.get(run.run)
        since_ms = 0 if known is not None else self._since_ms
        if known is None:
            known = self._runs[run.run] = _Run(run.workflow if plan else metrics.OTHER)
            if run.requested_ms >= since_ms:
                points.append(Point(metrics.RUN_STARTED, 1, {names.WORKFLOW: known.workflow}))
        known.moved_us = max(known.moved_us, at_us)
        steps = plan.steps if plan is not None else {}
        for name, entry in run.steps.items():
            if entry.ended_ms and name in steps and name not in known.closed:
                known.closed.add(name)
                is_counted = entry.ended_ms >= since_ms and not is_kept(run, name)
                if is_counted and plan is not None:
                    label = plan.label_of(name)
                    points.extend(_step_ended(known.workflow, label, steps[name], entry))
        self._move(known, run, steps)
        if run.is_terminal:
            self._forget(run.run)
            if run.ended_ms >= since_ms:
                points.extend(_run_ended(known.workflow, run))
        return [] if is_old else points

    def moved(self, run: str, at_us: int) -> None:
        """Note that something happened in a run."""
        known = self._runs.get(run)
        if known is not None:
            known.moved_us = at_us

    def gauges(self, now_us: int) -> list[Point]:
        """Return how many runs and tasks are active, and how long nothing happened in them."""
        points = [
            Point(metrics.RUN_ACTIVE, n, {names.WORKFLOW: workflow, names.RUN_STATUS: status})
            for (workflow, status), n in self._counts.items()
        ]
        points += [Point(metrics.TASK_ACTIVE, n, _of(type)) for type, n in self._tasks.items()]
        oldest: dict[str, int] = {}
        for each in self._runs.values():
            if each.status == "running":
                moved_us = oldest.get(each.workflow, each.moved_us)
                oldest[each.workflow] = min(moved_us, each.moved_us)
        for workflow in {workflow for workflow, _ in self._counts}:
            unmoved_s = max(0, now_us - oldest.get(workflow, now_us)) / 1e6
            points.append(Point(metrics.RUN_UNMOVED, unmoved_s, {names.WORKFLOW: workflow}))
        return points

    @property
    def task_types(self) -> set[str]:
        """Task types of which a step was active."""
        return set(self._tasks)

    # ---------------------------------------------------------------- small

    def _move(self, known: _Run, run: RunDocument, steps: dict[str, Step]) -> None:
        self._take_away(known)
        # At 0 it stays there: a gauge that vanishes reads like one that nobody writes.
        known.status = run.status
        self._counts[known.workflow, run.status] += 1
        known.active = tuple(
            step.type
            for name, entry in run.steps.items()
            if entry.status == "active"
            and (step := steps.get(name)) is not None
            and isinstance(step, TypedStep)
        )
        for each in known.active:
            self._tasks[each] += 1

    def _take_away(self, known: _Run) -> None:
        if known.status:
            self._counts[known.workflow, known.status] -= 1
        for each in known.active:
            self._tasks[each] -= 1

    def _forget(self, run: str) -> None:
        known = self._runs.pop(run)
        self._take_away(known)
        del self._counts[known.workflow, known.status]  # A status that no active run has.
        self._over[run] = None
        if len(self._over) > OVER_MAX:
            self._over.popitem(last=False)


def _step_ended(workflow: str, label: str, step: Step, entry: StepEntry) -> list[Point]:
    base = {names.WORKFLOW: workflow, names.STEP: label}
    duration_s = max(0, entry.ended_ms - entry.started_ms) / 1e3
    attributes = base | {
        names.STEP_KIND: str(step.__struct_config__.tag),
        names.STEP_STATUS: entry.status,
    }
    points = [Point(metrics.STEP_DURATION, duration_s, attributes)]
    if isinstance(step, AgentLoopStep):
        reason = entry.failure.type if entry.failure is not None else entry.status
        # Names of bounds, of exceptions and of states: bounded like every failure's type.
        stopped = base | {metrics.STOP_REASON: reason}
        points.append(Point(metrics.LOOP_ITERATIONS, entry.iterations, stopped))
    return points


def _run_ended(workflow: str, run: RunDocument) -> list[Point]:
    base = {names.WORKFLOW: workflow, names.RUN_STATUS: run.status}
    error = {names.ERROR_TYPE: run.failure.type} if run.failure and run.status == "failed" else {}
    duration_s = max(0, run.ended_ms - run.requested_ms) / 1e3
    return [
        Point(metrics.RUN_COMPLETED, 1, base | error),
        Point(metrics.RUN_DURATION, duration_s, base),
    ]


def _of(task_type: str) -> dict[str, str]:
    return {names.TASK_TYPE: task_type}
