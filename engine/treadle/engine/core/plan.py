"""A definition, indexed for the questions the core asks of it."""

from __future__ import annotations

from treadle.sdk.definition import AgentLoopStep, SignalStep, Step, TaskStep, WorkflowDefinition

DELAY_BY_WORKER_MS_MAX = 30_000
"""Longer delays are slept in the timers stream: a delayed task occupies a place in a consumer's
pending list, and schedules are only 0 to 250 ms late, which no long delay feels."""


class Plan:
    """An immutable view of one definition: steps by id, dependents, sinks, timers."""

    __slots__ = ("definition", "dependents", "hash", "may_set_timers", "roots", "sinks", "steps")

    def __init__(self, definition: WorkflowDefinition, content_hash: str) -> None:
        self.definition = definition
        self.hash = content_hash
        self.steps: dict[str, Step] = {step.id: step for step in definition.steps}
        self.dependents: dict[str, tuple[Step, ...]] = {
            step.id: tuple(other for other in definition.steps if step.id in other.after)
            for step in definition.steps
        }
        self.roots = tuple(step for step in definition.steps if not step.after)
        self.sinks = tuple(step.id for step in definition.steps if not self.dependents[step.id])
        self.may_set_timers = definition.timeout_s > 0 or any(
            _may_set_timers(step) for step in definition.steps
        )

    def work(self, step_id: str) -> TaskStep | AgentLoopStep:
        """Return a step that workers execute; raise ``KeyError`` for any other."""
        step = self.steps[step_id]
        if isinstance(step, SignalStep):
            raise KeyError(step_id)
        return step


def _may_set_timers(step: Step) -> bool:
    match step:
        case SignalStep():
            return step.timeout_s > 0
        case TaskStep():
            # Whatever the policy says: a handler may ask for any delay with its failure,
            return step.retry.max_attempts > 1
        case AgentLoopStep():
            # or with its output; a resume and a wrap-up set deadlines too.
            return True
