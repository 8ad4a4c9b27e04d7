"""Published events in the simulated world, and the steps that wait for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from treadle.engine.core import Plan
from treadle.engine.core.waits import is_waiting, used_before
from treadle.sdk import conditions, matching
from treadle.sdk.cancel_on import is_cancel_id
from treadle.sdk.definition import EventStep
from treadle.sdk.messages import EventMatched, Failure
from treadle.sdk.run import RunDocument

if TYPE_CHECKING:
    from treadle.sdk.testing.world import World


class _Published(NamedTuple):
    sequence: int
    name: str
    value: Any


class External:
    """The events that were published since the run was requested."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._published: list[_Published] = []

    def publish(self, plan: Plan, run: RunDocument, name: str, value: Any) -> None:
        """Publish an event; the steps that wait for it are told."""
        published = _Published(len(self._published) + 1, name, value)
        self._published.append(published)
        for step_id, entry in run.steps.items():
            if isinstance(plan.steps[step_id], EventStep) and entry.status == "active":
                self._meet(plan, run, step_id, [published])
        for wait in plan.cancels:
            if is_waiting(run, wait):
                self._meet(plan, run, wait, [published])

    def wait(self, plan: Plan, run: RunDocument, step_id: str) -> None:
        """Give a step that waits what was published before."""
        self._meet(plan, run, step_id, self._published)

    def _meet(
        self, plan: Plan, run: RunDocument, step_id: str, published: list[_Published]
    ) -> None:
        step = plan.awaited(step_id)
        run_input, steps = self._world.named(step_id)
        matched = None if is_cancel_id(step_id) else _failed(step, run, run_input, steps)
        used = used_before(run, step_id)
        for each in published:
            if matched is not None or each.name != step.event or each.sequence in used:
                continue
            if matching.fits(step.match, each.value, run_input, steps):
                matched = EventMatched(
                    step=step_id,
                    request=run.requested,
                    name=each.name,
                    published=each.sequence,
                    payload=msgspec.Raw(msgspec.json.encode(each.value)),
                )
        if matched is not None:
            event = matched
            self._world.after(f"event-{step_id}", 0, lambda: self._world.publish(event))


def _failed(
    step: EventStep, run: RunDocument, run_input: Any, steps: dict[str, Any]
) -> EventMatched | None:
    """Return what fails a step that no event can fit."""
    equality = matching.equality(step.match)
    if equality is None or not equality.is_all:
        return None
    try:
        conditions.value_of(equality.other, run_input, steps)
    except conditions.ConditionError as exc:
        failure = Failure("condition", str(exc), retryable=False)
        return EventMatched(step=step.id, request=run.requested, failure=failure)
    return None
