"""What has to be true outside, given a document or a register as it stands.

Effects are a function of the state, not of the event that led there. Whoever finds a state,
for the first time or the tenth, drives all of its effects; each is idempotent. That is why a
crash between the state and its effects loses nothing, and why "it was applied before" is never
a reason to skip them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec

from treadle.engine.core import maps, waits
from treadle.engine.core.bounds import limit, overspent, spent_by, task_of
from treadle.engine.core.flow import gated, slots_of
from treadle.engine.core.moment import Moment
from treadle.engine.core.pausing import hold
from treadle.engine.core.plan import Plan
from treadle.engine.core.scheduling import is_entering
from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    ChoiceStep,
    EventStep,
    MapStep,
    RespondStep,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    TaskStep,
    WorkStep,
    expires_ms,
    wakes_ms,
)
from treadle.sdk.messages import (
    Ended,
    Failure,
    Flow,
    MapChunk,
    Parked,
    Register,
    Sleeping,
    Task,
    TaskInput,
    TimerFired,
)
from treadle.sdk.run import RunDocument, StepEntry
from treadle.sdk.spending import NOTHING, SharedBudget, limits_of
from treadle.sdk.subjects import chunk_id, step_of


class CreateRegister(msgspec.Struct, frozen=True):
    """The step is active, or a chunk of a map under way: its register has to exist."""

    step: str


class EndRegister(msgspec.Struct, frozen=True):
    """The run ended while the step was under way: its register has to hold ``Ended``."""

    step: str
    failure: Failure


class SetTimer(msgspec.Struct, frozen=True):
    """A schedule has to fire at ``due_ms``; setting it again replaces it."""

    id: str
    due_ms: int
    event: TimerFired


class ClearTimers(msgspec.Struct, frozen=True):
    """The run ended: its schedules may go."""


class NotifyCancel(msgspec.Struct, frozen=True):
    """Workers that execute tasks of this run, or of this step of it, should stop."""

    reason: str
    step: str = ""


class AwaitEvent(msgspec.Struct, frozen=True):
    """The step, or the run to be cancelled by it, waits for a published event: it has to be among
    those that events look for, and what was published before has to be looked at."""

    step: str


class ForgetWaiter(msgspec.Struct, frozen=True):
    """The step, or the run, waits for no published event any more."""

    step: str


class EnterLane(msgspec.Struct, frozen=True):
    """It is time for a scheduled run: its lane has to have a place for it."""


class SettleLane(msgspec.Struct, frozen=True):
    """Whoever is first in the run's lane has to know it: the run is queued, or has left it."""


class Supersede(msgspec.Struct, frozen=True):
    """Every run before this one in its lane that is not over has to be cancelled for it."""


class SettlePause(msgspec.Struct, frozen=True):
    """Every engine has to know whether the run is paused."""


class StartChild(msgspec.Struct, frozen=True):
    """The step is active: the run it starts has to be requested."""

    step: str


class CancelChild(msgspec.Struct, frozen=True):
    """The step was stopped: the run it has started has to hear that nobody waits for it."""

    step: str
    attempt: int
    """Which of its runs; 0 is not known, so any."""
    reason: str


class TellParent(msgspec.Struct, frozen=True):
    """The run has ended: the step that waits for it has to hear how."""


Command = (
    CreateRegister
    | EndRegister
    | SetTimer
    | ClearTimers
    | NotifyCancel
    | AwaitEvent
    | ForgetWaiter
    | Supersede
    | EnterLane
    | SettleLane
    | SettlePause
    | StartChild
    | CancelChild
    | TellParent
)


def of_document(
    plan: Plan | None, run: RunDocument, driven: RunDocument | None = None
) -> tuple[Command, ...]:
    """Return every effect of a run document as it stands.

    ``driven`` is an earlier one of which all effects are true: registers of chunks that exist
    already are left out, so that a map costs the same however many are under way.
    """
    others = _of_neighbours(run)
    if run.is_terminal:
        told = (TellParent(),) if run.parent and not run.parent.detached else ()
        return (*_of_ended_run(plan, run), *others, *told)
    cancels = _of_cancels(plan, run)
    if run.status == "queued":
        entering = (EnterLane(),) if is_entering(run) else others
        return (*entering, *cancels, *_of_deadline(run))
    if run.status == "scheduled":
        fired = TimerFired(kind="run_start", due_ms=run.starts_ms)
        return (SetTimer("start", run.starts_ms, fired), *cancels)
    assert plan is not None
    commands: list[Command] = [*cancels]
    if run.pause is not None:
        commands.append(SettlePause())
    if run.undoing:
        commands.extend(_of_cancelled_steps(plan, run))
        ended = (command.step for command in commands if isinstance(command, EndRegister))
        steps = dict.fromkeys(map(step_of, ended))
        commands.extend(NotifyCancel(_why(run), step_id) for step_id in steps)
        commands.extend(_of_cancelled_children(plan, run))
    else:
        commands.extend(_of_deadline(run))
    for step_id, entry in run.steps.items():
        if entry.status == "active":
            commands.extend(_of_active_step(run, plan.steps[step_id], entry, driven))
        elif entry.status == "failed" and step_id in run.maps and not run.undoing:
            commands.extend(_of_failed_map(run, step_id, driven))
    return (*commands, *_of_waits_over(plan, run))


def _of_deadline(run: RunDocument) -> tuple[SetTimer, ...]:
    if not run.deadline_ms:
        return ()
    fired = TimerFired(kind="run_deadline", due_ms=run.deadline_ms)
    return (SetTimer("run", run.deadline_ms, fired),)


def _of_cancels(plan: Plan | None, run: RunDocument) -> list[Command]:
    """Return what is due of the events that cancel the run; without a definition there are none."""
    if plan is None or not plan.cancels:
        return []
    if waits.is_cancellable(run):
        return [AwaitEvent(wait) for wait in plan.cancels]
    return [ForgetWaiter(wait) for wait in plan.cancels]


def _of_waits_over(plan: Plan, run: RunDocument) -> tuple[ForgetWaiter, ...]:
    entries = ((step_id, run.steps.get(step_id)) for step_id in plan.waited_before)
    over = ("completed", "failed", "cancelled")
    return tuple(ForgetWaiter(name) for name, entry in entries if entry and entry.status in over)


def _of_neighbours(run: RunDocument) -> tuple[Command, ...]:
    """Return what others have to know of a run that is queued, or has ended."""
    lane: tuple[Command, ...] = (SettleLane(),) if run.lane else ()
    if run.status == "queued" and run.singleton == "cancel_older":
        lane = (Supersede(), *lane)
    return (*lane, SettlePause()) if run.pause is not None else lane


def _of_active_step(
    run: RunDocument, step: Step, entry: StepEntry, driven: RunDocument | None
) -> tuple[Command, ...]:
    started_ms = entry.started_ms
    match step:
        case SubWorkflowStep():
            if entry.due_ms:
                return (_step_timer("w", "wake", step.id, "", entry.due_ms),)
            return () if run.is_paused else (StartChild(step.id),)
        case MapStep():
            before = driven.maps.get(step.id) if driven else None
            since = before.next if before else 0
            fresh = maps.numbers(run.maps[step.id].under_way, since)
            return tuple(CreateRegister(chunk_id(step.id, number)) for number in fresh)
        case SleepStep():
            due_ms = wakes_ms(step, started_ms, entry.due_ms)
            return (_step_timer("w", "wake", step.id, "", due_ms),)
        case SignalStep() | EventStep() | ApprovalStep():
            due_ms = expires_ms(step, started_ms)
            timer = (_step_timer("d", "step_deadline", step.id, "", due_ms),) if due_ms else ()
            return (AwaitEvent(step.id), *timer) if isinstance(step, EventStep) else timer
        case ChoiceStep() | RespondStep():
            return ()  # It is over as soon as it is its turn.
        case _:
            return (CreateRegister(step.id),)


def _of_ended_run(plan: Plan | None, run: RunDocument) -> list[Command]:
    children = _of_cancelled_children(plan, run)
    if plan is None:
        return [*children]
    commands: list[Command] = [*_of_cancelled_steps(plan, run)]
    if commands:
        commands.append(NotifyCancel(_why(run)))
    commands.extend(children)
    if plan.may_set_timers or run.deadline_ms or run.starts_ms or run.version_policy == "latest":
        commands.append(ClearTimers())
    return [*commands, *_of_cancels(plan, run), *_of_waits_over(plan, run)]


def _of_cancelled_steps(plan: Plan, run: RunDocument) -> list[EndRegister]:
    failure = Failure("cancelled", f"the run ended: {_why(run)}", retryable=False)
    commands = [
        EndRegister(step_id, failure)
        for step_id, entry in run.steps.items()
        if entry.status == "cancelled" and isinstance(plan.steps.get(step_id), WorkStep)
    ]
    for step_id in run.maps:
        if run.steps[step_id].status in ("cancelled", "failed"):
            commands.extend(_of_chunks(run, step_id, failure))
    return commands


def _of_chunks(run: RunDocument, step_id: str, failure: Failure) -> list[EndRegister]:
    """The chunks of a map that were under way when it was stopped."""
    under_way = maps.numbers(run.maps[step_id].under_way)
    return [EndRegister(chunk_id(step_id, number), failure) for number in under_way]


def _of_failed_map(run: RunDocument, step_id: str, driven: RunDocument | None) -> list[Command]:
    """Stop what is under way of a map that failed in a run that goes on."""
    before = driven.steps.get(step_id) if driven else None
    if before is not None and before.status == "failed":
        return []
    failure = Failure("cancelled", f"map {step_id!r} has failed", retryable=False)
    chunks = _of_chunks(run, step_id, failure)
    return [*chunks, NotifyCancel("failed", step_id)] if chunks else []


def _of_cancelled_children(plan: Plan | None, run: RunDocument) -> list[CancelChild]:
    """Return what is due of the runs that nobody waits for any more, also without a definition."""
    reason = f"its parent, run {run.run!r}, ended: {_why(run)}"
    return [
        CancelChild(step_id, entry.attempt, reason)
        for step_id, entry in run.steps.items()
        if entry.status == "cancelled" and _starts_runs(plan, step_id, entry)
    ]


def _starts_runs(plan: Plan | None, step_id: str, entry: StepEntry) -> bool:
    if plan is None:
        return entry.attempt > 0
    step = plan.steps[step_id]
    return isinstance(step, SubWorkflowStep) and not step.detached


def _why(run: RunDocument) -> str:
    """Return why the run will not complete, or has not."""
    return run.failure.type if run.failure else run.undoing or run.status


def of_register(step_id: str, task_type: str, register: Register) -> tuple[SetTimer, ...]:
    """Return every effect of a register as it stands: its deadline and its wake-up."""
    if isinstance(register, Ended):
        return ()
    timers: list[SetTimer] = []
    deadline_ms = task_of(register).deadline_ms
    if deadline_ms and not isinstance(register, Parked):
        timers.append(_step_timer("d", "step_deadline", step_id, task_type, deadline_ms))
    if isinstance(register, Sleeping | Parked) and register.due_ms:
        timers.append(_step_timer("w", "wake", step_id, task_type, register.due_ms))
    return tuple(timers)


def _step_timer(
    letter: str,
    kind: Literal["step_deadline", "wake"],
    step_id: str,
    task_type: str,
    due_ms: int,
) -> SetTimer:
    fired = TimerFired(kind=kind, step=step_id, type=task_type, due_ms=due_ms)
    return SetTimer(f"{letter}-{step_id}", due_ms, fired)


def first_register(
    plan: Plan,
    run: RunDocument,
    step: TaskStep | AgentLoopStep,
    task_input: TaskInput,
    flow: Flow | None,
    chunk: MapChunk | None = None,
    *,
    budgets: tuple[SharedBudget, ...] = (),
    begins: Callable[[Task], Task] | None = None,
) -> Register:
    """Return the first value of an active step's register.

    A paused run holds it; under limits it waits for them; a loop whose ``budgets`` are used up is
    stopped before it begins. ``begins`` is what a run that was forked makes of the first task.
    """
    task = first_task(plan, run, step, task_input, chunk, budgets)
    if begins is not None:
        task = begins(task)
    now = Moment(run.run, task.parent, task.started_ms)
    if task.budgets and (reason := overspent(task)):
        stopped = limit(step, task, reason, now)
        if not isinstance(stopped, Task):
            return stopped
        task = stopped
    limited = task if flow is None else msgspec.structs.replace(task, flow=flow)
    return hold(limited, now) if run.is_paused else gated(limited, now)


def first_task(
    plan: Plan,
    run: RunDocument,
    step: TaskStep | AgentLoopStep,
    task_input: TaskInput,
    chunk: MapChunk | None = None,
    budgets: tuple[SharedBudget, ...] = (),
) -> Task:
    """Return the first value of an active step's register, or of one of a map's chunk.

    ``max_duration`` counts from here: the time of the event that made the step active. ``budgets``
    are what bounds a loop besides its own limits.
    """
    entry = run.steps[step_of(step.id)]
    task = Task(
        parent=entry.event,
        workflow=run.workflow,
        definition=plan.hash,
        input=task_input,
        started_ms=entry.started_ms,
        timeout_ms=round(step.timeout_s * 1000),
        trace=run.trace,
        chunk=chunk,
        metadata=run.metadata,
        step_metadata=step.metadata,
    )
    if isinstance(step, TaskStep):
        return task
    duration_ms = round(step.max_duration_s * 1000)
    return msgspec.structs.replace(
        task,
        loop=True,
        max_iterations=step.max_iterations,
        deadline_ms=entry.started_ms + duration_ms if duration_ms else 0,
        budget_warn_at=step.budget_warn_at,
        budget_force_at=step.budget_force_at,
        limits=limits_of(step),
        # What a planner has planned is in no version.
        follows=run.version_policy == "latest" and step.id not in plan.planner_of,
        budgets=budgets,
    )


def cancelled(register: Register | None, failure: Failure, moment: Moment) -> Ended:
    """Return the ``Ended`` that closes a register whatever it holds, or if it does not exist."""
    if isinstance(register, Ended):
        return register
    task = task_of(register) if register is not None else None
    return Ended(
        parent=moment.id,
        outcome="cancelled",
        iterations=task.counted if task else 0,
        attempt=task.attempt if task else 1,
        failure=failure,
        started_ms=task.started_ms if task else 0,
        ended_ms=moment.ms,
        spent=spent_by(task) if task else NOTHING,
        slots=slots_of(task) if task else (),
    )
