"""What the events of a run count for: executions, their waits, retries, losses, model calls.

Pure. An execution counts if its token is above those of the step's earlier ones, as in the trace
(``sdk/tracing/fold.py``): what a zombie tells counts nowhere.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from treadle.engine.core.plan import Plan
from treadle.engine.telemetry.instruments import Point
from treadle.sdk.definition import PlannerStep, TypedStep
from treadle.sdk.messages import (
    Event,
    Settled,
    StepCompleted,
    StepFailed,
    TaskLost,
)
from treadle.sdk.planned import extended, judged, own_of
from treadle.sdk.subjects import step_of
from treadle.sdk.tracing import metric_names as metrics
from treadle.sdk.tracing import names
from treadle.sdk.tracing.span import SpanPart


@dataclass(slots=True)
class _Step:
    token: int = 0
    told: int = -1
    """Highest number of the parts that were told."""
    failed: str = ""
    """Failure type of the last execution; empty if it did not fail."""


@dataclass(slots=True)
class Executions:
    """One run's."""

    plan: Plan
    _outputs: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Plans, by planner."""
    _steps: dict[str, _Step] = field(default_factory=dict[str, _Step])

    def event(self, event: Event, at_us: int) -> list[Point]:
        """Return what an event counts for; ``at_us`` is when it was stored."""
        if not isinstance(event, Settled):
            return []
        step = self.plan.steps.get(step_of(event.step))
        if step is None or not isinstance(step, TypedStep):
            return []
        state = self._steps.setdefault(event.step, _Step())
        if event.token <= state.token:
            return []
        state.token = event.token
        event = judged(step, event)
        if isinstance(step, PlannerStep) and isinstance(event, StepCompleted):
            self._outputs[step.id] = bytes(event.output)
            found = extended(own_of(self.plan.definition, self.plan.plans), self._outputs)
            self.plan = Plan(found.definition, self.plan.hash, found.plans)
        base = {
            names.WORKFLOW: self.plan.definition.name,
            names.STEP: self.plan.label_of(step.id),
            names.TASK_TYPE: step.type,
        }
        points = _duration(event, at_us, base)
        if event.taken_us:
            wait_s = max(0, event.taken_us - event.queued_us) / 1e6
            of_type = {names.TASK_TYPE: step.type, names.STEP_KIND: str(step.__struct_config__.tag)}
            points.append(Point(metrics.TASK_WAIT, wait_s, of_type))
        if isinstance(event, TaskLost):
            points.append(Point(metrics.TASK_LOST, 1, dict(base)))
        elif event.attempt > 1 and state.failed:
            attributes = base | {names.ERROR_TYPE: state.failed}
            points.append(Point(metrics.TASK_RETRIES, 1, attributes))
        state.failed = event.failure.type if isinstance(event, StepFailed) else ""
        if not isinstance(event, TaskLost):
            for part in event.parts:
                if part.number > state.told:
                    state.told = part.number
                    points.extend(_of_part(part))
        return points


def _duration(event: Settled, at_us: int, base: dict[str, str]) -> list[Point]:
    since_us = event.taken_us or event.queued_us
    if not since_us:
        return []  # A run without a trace does not tell when it was taken.
    attributes = dict(base)
    match event:
        case TaskLost():
            attributes[metrics.OUTCOME] = "lost"
        case StepFailed(failure=failure):
            attributes[metrics.OUTCOME] = "error"
            attributes[names.ERROR_TYPE] = failure.type
        case _:
            attributes[metrics.OUTCOME] = "ok"
    return [Point(metrics.TASK_DURATION, max(0, at_us - since_us) / 1e6, attributes)]


def _of_part(part: SpanPart) -> list[Point]:
    operation = part.attributes.get(names.OPERATION)
    duration_s = max(0, part.end_us - part.start_us) / 1e6
    error = {names.ERROR_TYPE: part.error} if part.error else {}
    match operation:
        case names.CHAT:
            of_call = _taken(
                part, names.OPERATION, names.PROVIDER, names.REQUEST_MODEL, names.RESPONSE_MODEL
            )
            points = [
                Point(metrics.TOKEN_USAGE, count, of_call | {metrics.TOKEN_TYPE: kind})
                for kind, name in (("input", names.USAGE_INPUT), ("output", names.USAGE_OUTPUT))
                if isinstance(count := part.attributes.get(name, 0), int) and count
            ]
            if duration_s:  # Of some calls only the end is stored.
                points.append(Point(metrics.OPERATION_DURATION, duration_s, of_call | error))
            return points
        case names.EXECUTE_TOOL:
            return [Point(metrics.TOOL_DURATION, duration_s, _taken(part, names.TOOL) | error)]
        case names.INVOKE_AGENT:
            return [Point(metrics.AGENT_DURATION, duration_s, _taken(part, names.AGENT) | error)]
        case _:
            return []


def _taken(part: SpanPart, *wanted: str) -> dict[str, str]:
    return {name: str(part.attributes[name]) for name in wanted if name in part.attributes}
