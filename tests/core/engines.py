"""What an engine does with one event, as steps between which it may die or another may act.

The order is the protocol's: one compare-and-set moves the state, effects are driven, the event
is acked. Every ``yield`` is a point in time: a generator that is dropped there is an engine
that was killed, one that is resumed much later is an engine that was paused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

from treadle.engine.core import (
    Moment,
    Placed,
    RunEvent,
    StepEnded,
    StepParked,
    StepResumed,
    advance,
    apply,
    effects,
    request,
)
from treadle.sdk.definition import SignalStep
from treadle.sdk.messages import (
    Ended,
    Parked,
    ResumeRequested,
    RunRequested,
    StepCompleted,
    StepContinued,
    StepFailed,
    TaskDue,
    TaskLost,
    TimerFired,
)

if TYPE_CHECKING:
    from tests.core.world import World

Settle = StepContinued | StepCompleted | StepFailed


def handle(world: World, event: Any, moment: Moment) -> Generator[None, None, None]:
    """Handle one event; it stays un-acked if this is not run to its end."""
    if world.document is None and not isinstance(event, RunRequested):
        return
    facts: list[RunEvent] = []
    match event:
        case StepContinued() | StepCompleted() | StepFailed() | TaskLost() | TaskDue():
            facts += yield from _settle(world, event.step, event, moment)
        case TimerFired() if event.type:
            facts += yield from _settle(world, event.step, event, moment)
        case ResumeRequested():
            for step_id in list(world.registers):
                facts += yield from _settle(world, step_id, event, moment)
        case _:
            facts.append(event)
    for fact in facts:
        yield from _fold(world, fact, moment)
    yield
    world.ack(moment.id)


def _settle(
    world: World, step_id: str, event: Any, moment: Moment
) -> Generator[None, None, list[RunEvent]]:
    step = world.plan.work(step_id)
    while True:
        yield
        placed = world.registers[step_id]
        if placed.register.parent == moment.id:
            return _told(step_id, placed, event)
        new = advance(step, placed, event, moment)
        if new is placed.register:
            return _missed(world, step_id, placed, event)
        head = event.head if isinstance(event, Settle) else world.heads[step_id]
        yield
        if world.put_register(step_id, new, head):
            return _told(step_id, world.registers[step_id], event)
        if isinstance(event, Settle) and world.registers[step_id] is placed:
            # The token stands, the head moved: two executions, and neither is believed.
            common = {"step": step_id, "type": step.type, "token": placed.sequence}
            event = TaskLost(**common)


def _missed(world: World, step_id: str, placed: Placed, event: Any) -> list[RunEvent]:
    """A resume whose engine died before it told the document, when the step has moved on since."""
    assert world.document is not None
    is_parked = world.document.steps[step_id].status == "parked"
    moves = not isinstance(placed.register, Parked | Ended)
    if isinstance(event, ResumeRequested) and is_parked and moves:
        return [StepResumed(step_id, placed.register.parent, placed.sequence)]
    return []


def _told(step_id: str, placed: Placed, event: Any) -> list[RunEvent]:
    register, position = placed.register, placed.sequence
    parent = register.parent
    match register:
        case Ended():
            outcome, iterations = register.outcome, register.iterations
            return [StepEnded(step_id, outcome, iterations, register.failure, parent, position)]
        case Parked():
            return [StepParked(step_id, register.reason, register.task.iteration, parent, position)]
        case _ if isinstance(event, ResumeRequested):
            return [StepResumed(step_id, parent, position)]
        case _:
            return []


def _fold(world: World, event: RunEvent, moment: Moment) -> Generator[None, None, None]:
    while True:
        yield
        revision, run = world.revision, world.document
        if run is not None:
            new = apply(world.plan, run, event, moment)
        else:
            assert isinstance(event, RunRequested)
            new = request(world.plan, event, moment, "main")
        yield
        if new is run or world.put_document(new, revision):
            break
    for command in effects.of_document(world.plan, new):
        yield
        match command:
            case effects.CreateRegister():
                step = world.plan.steps[command.step]
                assert not isinstance(step, SignalStep)
                task = effects.first_task(world.plan, new, step, world.input_of(step))
                world.put_register(command.step, task, 0)
                world.set_timers(command.step)
            case effects.EndRegister():
                yield from _end(world, command)
            case effects.SetTimer():
                world.timers[command.id] = command
            case effects.ClearTimers():
                world.timers.clear()
            case effects.NotifyCancel():
                pass


def _end(world: World, command: effects.EndRegister) -> Generator[None, None, None]:
    while True:
        placed = world.registers.get(command.step)
        register, head = (placed.register if placed else None), world.heads.get(command.step, 0)
        ended = effects.cancelled(register, command.failure, world.moment("x"))
        yield
        if ended is register or world.put_register(command.step, ended, head):
            return
