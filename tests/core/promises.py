"""Promises about messages, waits and runs that steps start, read off a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from treadle.engine.core.bounds import reached
from treadle.engine.core.waits import is_waiting, used_before
from treadle.sdk.definition import EventStep, SubWorkflowStep
from treadle.sdk.messages import ChildEnded, Ended, Register, Task
from treadle.sdk.run import RunDocument, StepEntry, child_of
from treadle.sdk.spending import NOTHING, at_least, plus

if TYPE_CHECKING:
    from tests.core.world import World


def check_messages(world: World, step_id: str, values: list[Register]) -> None:
    """A step that takes messages ended with all of them seen, or at a bound."""
    ended = values[-1]
    if not isinstance(ended, Ended) or ended.outcome != "completed":
        return
    event, moment = world.log[ended.parent]
    before = values[-2]
    assert isinstance(before, Task)
    if not event.takes_messages or world.newest(step_id, moment.sequence) <= event.seen:
        return
    spent = plus(before.spent, at_least(before.spent_now, event.spent))
    following = msgspec.structs.replace(
        before, iteration=before.iteration + 1, spent=spent, spent_now=NOTHING
    )
    assert reached(following, moment.ms), "only a bound ends a step over an unseen message"


def check_children(world: World, run: RunDocument, step: SubWorkflowStep, entry: StepEntry) -> None:
    """Each attempt that began has its run, and the last one of a stopped step was told."""
    for attempt in range(1, entry.attempt + 1 - bool(entry.due_ms)):
        is_last = attempt == entry.attempt and entry.status == "cancelled"
        assert child_of(run, step.id, attempt) in world.children or is_last
    if entry.status == "cancelled":
        assert step.detached or child_of(run, step.id) in world.told


def end_child(world: World, step_id: str, outcome: Any) -> None:
    """The run that a step has started last ends, or is said to once more."""
    run = world.document
    if run is None or step_id not in run.steps or not run.steps[step_id].attempt:
        return
    child = child_of(run, step_id)
    if child in world.children:
        attempt = world.children[child]
        event = ChildEnded(step=step_id, child=child, attempt=attempt, outcome=outcome)
        world.store(event)


def check_waiters(world: World) -> None:
    """Assert what is true when every event was met: nobody waits for what is there."""
    assert world.document is not None
    run = world.document
    for wait, cancel in world.plan.cancels.items():
        assert (wait in world.waiters) == is_waiting(run, wait)
        is_missed = is_waiting(run, wait) and cancel.event in world.published.values()
        assert not is_missed, "no event that cancels is missed"
    for step_id, entry in run.steps.items():
        step = world.plan.steps[step_id]
        if not isinstance(step, EventStep):
            continue
        if run.is_terminal or entry.status != "active":
            assert step_id not in world.waiters, "a step that is over is not found any more"
            continue
        used = used_before(run, step_id)
        assert world.waiters[step_id] == used
        fitting = [n for n, name in world.published.items() if name == step.event]
        assert set(fitting) <= set(used), "no event that was published is missed"
    for step_id, entry in run.steps.items():
        step = world.plan.steps[step_id]
        if isinstance(step, EventStep) and entry.position:
            assert world.published[entry.position] == step.event
            assert entry.position not in used_before(run, step_id)
