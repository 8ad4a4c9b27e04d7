"""Promises about messages and about runs that steps start, read off a simulated world."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from treadle.engine.core.bounds import reached
from treadle.sdk.definition import SubWorkflowStep
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
