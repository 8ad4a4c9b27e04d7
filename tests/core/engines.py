"""What an engine does with one event, as steps between which it may die or another may act.

The order is the protocol's: one compare-and-set moves the state, effects are driven, the event
is acked. Every ``yield`` is a point in time: a generator that is dropped there is an engine
that was killed, one that is resumed much later is an engine that was paused.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import msgspec
from tests.core import admitting, budgets
from tests.core.mapping import chunk_of
from tests.core.walks import decided

from treadle.engine.core import (
    ChildStarted,
    Moment,
    Placed,
    Plan,
    RunEvent,
    StepEnded,
    StepParked,
    StepResumed,
    advance,
    apply,
    effects,
    pausing,
    request,
)
from treadle.engine.core.advance import is_still
from treadle.engine.core.bounds import spent_by
from treadle.engine.core.flow import gated, is_limited, resolve
from treadle.engine.core.waits import is_waiting, used_before
from treadle.sdk.definition import ApprovalStep, SubWorkflowStep, TypedStep
from treadle.sdk.messages import (
    Ended,
    MessageSent,
    Parked,
    ResumeRequested,
    RunRequested,
    SettleEvent,
    StepCompleted,
    StepContinued,
    StepFailed,
    StepWaiting,
    TaskDue,
    TaskLost,
    TimerFired,
)
from treadle.sdk.run import RunDocument, child_of
from treadle.sdk.subjects import step_of

if TYPE_CHECKING:
    from tests.core.world import World

Settle = SettleEvent
MOVES = ResumeRequested | MessageSent | TimerFired
"""What moves a parked step on."""


def handle(world: World, event: Any, moment: Moment) -> Generator[None, None, None]:
    """Handle one event; it stays un-acked if this is not run to its end."""
    if world.document is None and not isinstance(event, RunRequested):
        return
    facts: list[RunEvent] = []
    match event:
        case (
            StepContinued()
            | StepWaiting()
            | StepCompleted()
            | StepFailed()
            | TaskLost()
            | TaskDue()
        ):
            facts += yield from _settle(world, event.step, event, moment)
        case TimerFired() if event.type:
            facts += yield from _settle(world, event.step, event, moment)
        case ResumeRequested():
            yield from _fold(world, event, moment)
            for step_id in list(world.registers):
                facts += yield from _settle(world, step_id, event, moment)
        case MessageSent():
            if event.step in world.registers:
                facts += yield from _settle(world, event.step, event, moment)
            elif isinstance(world.plan.steps.get(event.step), ApprovalStep):
                facts.append(event)
        case _:
            facts.append(event)
    for fact in facts:
        yield from _fold(world, fact, moment)
        if isinstance(fact, StepParked):
            yield
            for since in _moved_on(world, fact.step):
                yield from _fold(world, since, moment)
    yield
    world.ack(moment.id)


def _settle(
    world: World, step_id: str, event: Any, moment: Moment
) -> Generator[None, None, list[RunEvent]]:
    step = world.plan.work(step_id)
    while True:
        yield
        placed = world.registers[step_id]
        before = placed.register
        if before.parent == moment.id:
            return (yield from _after(world, step_id, placed, event, before))
        head = event.head if isinstance(event, Settle) else world.heads[step_id]
        yield
        newest = world.newest(step_id) if getattr(event, "takes_messages", False) else 0
        is_paused = world.is_known_paused()
        step, at = world.at(step_id, placed, event)
        at = budgets.informed(world, step_id, at, event)
        yield
        new = advance(step, at, event, moment, newest, is_paused=is_paused)
        if new is at.register:
            return _moved_on(world, step_id)
        yield
        if world.put_register(step_id, new, head):
            placed = world.registers[step_id]
            return (yield from _after(world, step_id, placed, event, before))
        if isinstance(event, Settle) and world.registers[step_id] is placed:
            # The token stands, the head moved: two executions, and neither is believed.
            common = {"step": step_id, "type": step.type, "token": placed.sequence}
            event = TaskLost(**common)


def _after(
    world: World, step_id: str, placed: Placed, event: Any, before: Any
) -> Generator[None, None, list[RunEvent]]:
    """The effect of a register that waits: a message it has not seen wakes it."""
    moves = isinstance(event, MOVES) or (isinstance(before, Parked) and not before.line)
    yield from admitting.settle(world, step_id, placed)
    placed = world.registers[step_id]
    while isinstance(placed.register, Parked) and placed.register.waits:
        yield
        found = world.newest_message(step_id)
        if found is None:
            break
        is_paused = world.is_known_paused()
        step, at = world.at(step_id, placed, found[0])
        new = advance(step, at, *found, is_paused=is_paused)
        if new is at.register:
            break
        yield
        # No execution holds it, so nobody else moves the head but with the register.
        world.put_register(step_id, new, placed.sequence)
        yield from admitting.settle(world, step_id, world.registers[step_id])
        placed, moves = world.registers[step_id], True
    if (yield from released(world, step_id)):
        placed, moves = world.registers[step_id], True
    return _told(step_id, placed, moves=moves)


def released(world: World, step_id: str) -> Generator[None, None, bool]:
    """Whoever has held a register looks whether the run was resumed meanwhile."""
    is_moved = False
    while isinstance(register := world.registers[step_id].register, Parked) and register.paused:
        head = world.heads[step_id]
        yield
        run = world.document
        if run is None or run.is_paused or run.is_terminal:
            break
        resumed = pausing.resume_of(run)
        task = gated(pausing.release(register, resumed), resumed)
        yield
        if world.put_register(step_id, task, head):
            is_moved = True
            yield from admitting.settle(world, step_id, world.registers[step_id])
    return is_moved


def _moved_on(world: World, step_id: str) -> list[RunEvent]:
    """A step that moves and is believed parked: somebody died before he said so, or is late."""
    assert world.document is not None
    placed = world.registers[step_id]
    entry = world.document.steps.get(step_id)
    is_parked = entry is not None and entry.status == "parked"
    if is_parked and not is_still(placed.register):
        return [StepResumed(step_id, placed.register.parent, placed.sequence)]
    return []


def _told(step_id: str, placed: Placed, *, moves: bool) -> list[RunEvent]:
    register, position = placed.register, placed.sequence
    parent = register.parent
    match register:
        case Parked(paused=True):
            return []
        case Parked(line=line) if line:
            return [StepResumed(step_id, parent, position)] if moves else []
        case Ended():
            outcome, iterations = register.outcome, register.iterations
            failure, spent = register.failure, register.spent
            ended = StepEnded(step_id, outcome, iterations, failure, parent, position, spent)
            return [msgspec.structs.replace(ended, chunk=register.chunk)]
        case Parked():
            task = register.task
            fact = StepParked(step_id, register.reason, task.counted, parent, position)
            told = {"waits": register.waits, "spent": spent_by(task), "failure": register.failure}
            return [msgspec.structs.replace(fact, **told)]
        case _ if moves:
            return [StepResumed(step_id, parent, position)]
        case _:
            return []


def _fold(world: World, event: RunEvent, moment: Moment) -> Generator[None, None, None]:
    while True:
        yield
        revision, run = world.revision, world.document
        plan = world.plan_of(run, event)
        if run is not None:
            new = decided(plan, apply(plan, run, event, moment), moment)
        else:
            assert isinstance(event, RunRequested)
            new = decided(plan, request(plan, event, moment, "main"), moment)
        yield
        if new is run or world.put_document(new, revision):
            break
    found: list[RunEvent] = []
    for command in effects.of_document(plan, new):
        yield
        match command:
            case effects.CreateRegister(step=step_id):
                found += yield from _create(world, plan, new, step_id)
            case effects.EndRegister():
                yield from _end(world, command)
            case effects.SetTimer():
                world.timers[command.id] = command
            case effects.ClearTimers():
                world.timers.clear()
            case effects.NotifyCancel() | effects.SettlePause():
                pass
            case effects.AwaitEvent():
                yield from _await(world, new, command.step)
            case effects.ForgetWaiter():
                world.waiters.pop(command.step, None)

            case effects.StartChild(step=step_id):
                world.children.setdefault(child_of(new, step_id), new.steps[step_id].attempt)
                started = world.plan.steps[step_id]
                if isinstance(started, SubWorkflowStep) and started.detached:
                    found.append(ChildStarted(step_id, new.steps[step_id].attempt))
            case effects.CancelChild(step=step_id, attempt=attempt):
                world.told.add(child_of(new, step_id, attempt))
    for fact in found:
        yield from _fold(world, fact, moment)


def _create(
    world: World, plan: Plan, run: RunDocument, name: str
) -> Generator[None, None, list[RunEvent]]:
    """Make a register exist; one that was stopped before its first task has to be heard of."""
    step, defined = plan.work(name), plan.steps[step_of(name)]
    is_under_limits = isinstance(defined, TypedStep) and is_limited(defined)
    flow = resolve("w", defined, {}, {}) if is_under_limits else None
    chunk, shared = chunk_of(plan, run, name), budgets.of_step(world, name)
    yield
    given = world.input_of(step)
    first = effects.first_register(plan, run, step, given, flow, chunk, budgets=shared)
    first = world.newer.first(step, first)
    world.put_register(name, first, 0)
    yield from released(world, name)
    world.set_timers(name)
    yield from admitting.settle(world, name, world.registers[name])
    placed = world.registers[name]
    is_first = placed.register.parent == run.steps[step_of(name)].event
    return _told(name, placed, moves=False) if is_first else []


def _await(world: World, run: RunDocument, step_id: str) -> Generator[None, None, None]:
    """Store who waits, then look at what was published, then whether it still waits."""
    step = world.plan.awaited(step_id)
    world.waiters[step_id] = used_before(run, step_id)
    yield
    for sequence, name in list(world.published.items()):
        if name == step.event and sequence not in used_before(run, step_id):
            world.match(step_id, run.requested, sequence)
            break
    yield
    assert world.document is not None
    if not is_waiting(world.document, step_id):
        yield
        world.waiters.pop(step_id, None)


def meet(world: World, sequence: int) -> Generator[None, None, None]:
    """An engine lets a published event meet the steps that wait; then it is acked."""
    assert world.document is not None
    name, requested = world.published[sequence], world.document.requested
    for step_id, used in list(world.waiters.items()):
        step = world.plan.awaited(step_id)
        if step.event != name or sequence in used:
            continue
        yield
        world.match(step_id, requested, sequence)
        yield
        world.waiters.pop(step_id, None)
    yield
    world.unmet.pop(sequence, None)


def _end(world: World, command: effects.EndRegister) -> Generator[None, None, None]:
    while True:
        placed = world.registers.get(command.step)
        register, head = (placed.register if placed else None), world.heads.get(command.step, 0)
        ended = effects.cancelled(register, command.failure, world.moment("x"))
        yield
        if ended is register or world.put_register(command.step, ended, head):
            yield from admitting.settle(world, command.step, world.registers[command.step])
            return
