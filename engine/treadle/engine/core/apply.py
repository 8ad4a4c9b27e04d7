"""One run: its document and an event give the next document.

    (nothing) ──RunRequested──> queued ──LaneGranted──> running
    (nothing) ──RunRequested──> scheduled ──TimerFired──> running | queued
    (nothing) ──RunRequested──> running ──every step is over──> completed
    running ──a step failed and nothing handles it, the run's deadline──> failed
    scheduled | queued | running | parked ──CancelRequested | RunSuperseded | ParentEnded |
        EventMatched, if it cancels──> cancelled
    running <──StepResumed── parked <──StepParked, nothing active── running
    running | parked <──ResumeRequested── paused <──PauseRequested── running | parked

This is the only door to a run document; before it is stored, the conditions of the steps whose
turn it has become are asked (``progress.decided``). An event that changes nothing (it was applied
before, it comes after the end, its step is not where it would have to be) returns the same object.
What has to be done about a document is a function of the document: see ``effects.py``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

import msgspec

from treadle.engine.core import budget, children, pausing, progress, scheduling, singletons, waits
from treadle.engine.core.facts import (
    ChildStarted,
    RunPlaced,
    StepEnded,
    StepParked,
    StepResumed,
)
from treadle.engine.core.fitting import input_misfit
from treadle.engine.core.forking import Taken, first_steps, taken_over
from treadle.engine.core.maps import chunk_ended
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.core.progress import (
    go_on,
    goes_on_undoing,
    over,
    settled,
    stop,
    undo,
    with_step,
)
from treadle.engine.core.signals import consume, receive
from treadle.engine.core.undoing import end
from treadle.sdk.definition import (
    MapStep,
    SignalStep,
    SleepStep,
    SubWorkflowStep,
    WaitStep,
    expires_ms,
    wakes_ms,
)
from treadle.sdk.flow import PRIORITY_MAX
from treadle.sdk.limits import PLACES_MAX
from treadle.sdk.messages import (
    CancelRequested,
    ChildEnded,
    EventMatched,
    Failure,
    LaneGranted,
    MessageSent,
    ParentEnded,
    PauseRequested,
    ResumeRequested,
    RunRequested,
    RunSuperseded,
    SignalReceived,
    TimerFired,
)
from treadle.sdk.run import WAITING, RunDocument, StepEntry
from treadle.sdk.spending import limits_of
from treadle.sdk.subjects import parse_chunk, step_of

DEFINITION_GONE_MS = 60_000
"""A definition that is not found so long after a run was requested with it is gone. Earlier, a
deposed leader may have answered, which does not know what was stored last."""

RunEvent = (
    RunRequested
    | RunPlaced
    | LaneGranted
    | SignalReceived
    | MessageSent
    | EventMatched
    | CancelRequested
    | RunSuperseded
    | PauseRequested
    | ResumeRequested
    | TimerFired
    | StepEnded
    | StepParked
    | StepResumed
    | ChildStarted
    | ChildEnded
    | ParentEnded
)


def request(
    plan: Plan | None,
    event: RunRequested,
    moment: Moment,
    domain: str,
    *,
    is_queued: bool = False,
    behind: str = "",
    is_orphaned: bool = False,
    kept: Mapping[str, Taken] = {},
) -> RunDocument:
    """Return the first document of a run; failed at once if its workflow is not known.

    ``is_queued`` says that as many earlier requests of its lane as it has places may not be
    over, the first of them that of ``behind`` if it is known; ``is_orphaned`` that the step which
    asked for it waits for it no more.
    ``kept`` is what a run that was forked takes over, by step.
    """
    run = RunDocument(
        run=moment.run,
        workflow=event.workflow,
        definition=event.definition,
        domain=domain,
        requested=moment.sequence,
        requested_ms=moment.ms,
        metadata=event.metadata,
        lane=event.lane,
        singleton=event.singleton,
        places=max(1, min(event.places, PLACES_MAX)),
        priority=max(-PRIORITY_MAX, min(event.priority, PRIORITY_MAX)),
        parent=event.parent,
        trace=event.trace,
        fork=event.fork,
    )
    if plan is not None:
        run = msgspec.structs.replace(run, limits=limits_of(plan.definition))
    if is_orphaned:
        gone = Failure("cancelled", "the step that asked for the run is over", retryable=False)
        return end(run, "cancelled", moment, failure=gone)
    if plan is None:
        failure = Failure(
            "unknown_workflow",
            f"workflow {event.workflow!r} version {event.definition!r} is not registered; "
            "register it and start the run under another id",
            retryable=False,
        )
        return end(run, "failed", moment, failure=failure)
    if event.fork is not None:
        run = taken_over(plan, run, event.fork, kept)
    policy = event.version_policy or plan.definition.version_policy
    run = msgspec.structs.replace(run, version_policy=policy)
    unfit = input_misfit(plan.definition, event.input)
    if unfit is not None:
        return end(run, "failed", moment, failure=unfit)
    if later := scheduling.scheduled(run, event, moment):
        return later
    if is_queued and behind and event.singleton == "skip":
        return singletons.skipped(run, behind, moment)
    if is_queued:
        return msgspec.structs.replace(run, status="queued", deadline_ms=_parents_deadline_ms(run))
    return _begin(plan, run, moment)


def _begin(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    """Start the first steps; the time a run may take counts from here, not from its request."""
    timeout_ms = _timeout_ms(plan)
    own_ms = moment.ms + timeout_ms if timeout_ms else 0
    deadline_ms = min(filter(None, (own_ms, _parents_deadline_ms(run))), default=0)
    run = msgspec.structs.replace(run, status="running", deadline_ms=deadline_ms)
    return go_on(plan, run, first_steps(plan, run), moment)


def _timeout_ms(plan: Plan) -> int:
    return round(plan.definition.timeout_s * 1000)


def _parents_deadline_ms(run: RunDocument) -> int:
    """Return the end of the time that the run's parent gives it, from its request; 0 is none."""
    of_parent_ms = run.parent.timeout_ms if run.parent else 0
    return run.requested_ms + of_parent_ms if of_parent_ms else 0


def apply(plan: Plan, run: RunDocument, event: RunEvent, moment: Moment) -> RunDocument:
    """Return the run's next document, or the same object when the event changes nothing."""
    if run.is_terminal:
        return run
    match event:
        case RunRequested():
            return run
        case RunPlaced():
            placed = scheduling.placed(run, event, moment)
            is_first = placed is not run and not event.is_queued
            return _begin(plan, placed, moment) if is_first else placed
        case LaneGranted():
            if run.status != "queued" or event.request != run.place:
                return run
            return _begin(plan, run, moment)
        case SignalReceived():
            return _signal(plan, run, event, moment)
        case MessageSent():
            ended = waits.answered(plan, run, event, moment)
            return _step_ended(plan, run, ended, moment) if ended else run
        case EventMatched():
            if cause := waits.cancelling(plan, run, event):
                return stop(plan, run, "cancelled", moment, failure=cause)
            ended = waits.matched(plan, run, event, moment)
            return _step_ended(plan, run, ended, moment) if ended else run
        case CancelRequested():
            failure = Failure("cancelled", event.reason, retryable=False)
            if event.now:
                return end(pausing.lifted(run, moment), "cancelled", moment, failure=failure)
            if run.undoing:
                return goes_on_undoing(plan, run, moment)
            return stop(plan, run, "cancelled", moment, failure=failure)
        case RunSuperseded():
            return singletons.superseded(plan, run, event, moment)
        case PauseRequested():
            return pausing.paused(run, event, moment)
        case ResumeRequested():
            return _resume(plan, run, event, moment)
        case ParentEnded():
            if run.parent is None or run.parent.detached or run.undoing:
                return run
            failure = Failure("cancelled", event.reason, retryable=False)
            return stop(plan, run, "cancelled", moment, failure=failure)
        case ChildStarted():
            return children.started(plan, run, event, moment)
        case ChildEnded():
            return children.ended(plan, run, event, moment)
        case TimerFired():
            return _timer(run, event, moment, plan)
        case StepEnded():
            return _step_ended(plan, run, event, moment)
        case StepParked():
            return _step_parked(plan, run, event, moment)
        case StepResumed():
            return _step_resumed(plan, run, event, moment)
        case _:
            assert_never(event)


def without_definition(run: RunDocument, moment: Moment) -> RunDocument:
    """Fail a run whose definition is gone: nothing could move it, or end it, any more.

    A young run stays as it is, and its event comes again.
    """
    if run.is_terminal or moment.ms - run.requested_ms < DEFINITION_GONE_MS:
        return run
    failure = Failure(
        "unknown_workflow",
        f"workflow {run.workflow!r} version {run.definition!r} is not registered any more; "
        "register it and start the run under another id",
        retryable=False,
    )
    return end(run, "failed", moment, failure=failure)


def rebuilt(plan: Plan | None, event: RunRequested, requested: Moment, domain: str) -> RunDocument:
    """Return a document of a run whose own is lost: any of its steps may be under way.

    Good for one thing, to end the run: then every register is looked at, and what lives is ended.
    """
    entry = StepEntry(status="active", started_ms=requested.ms, event=requested.id)
    return RunDocument(
        run=requested.run,
        workflow=event.workflow,
        definition=event.definition,
        domain=domain,
        requested=requested.sequence,
        requested_ms=requested.ms,
        metadata=event.metadata,
        lane=event.lane,
        places=event.places,
        parent=event.parent,
        steps=dict.fromkeys(plan.steps, entry) if plan else {},
    )


def forget_applied(run: RunDocument, below: int) -> RunDocument:
    """Replace applied ids below the consumer's ack floor by the floor itself.

    Their events cannot return, unless the consumer is made anew; then the floor still knows them.
    """
    kept = tuple(event for event in run.applied if int(event[1:]) >= below)
    if len(kept) == len(run.applied):
        return run
    return msgspec.structs.replace(run, applied=kept, applied_below=below)


# ------------------------------------------------------------------ steps


def _under_way(plan: Plan, run: RunDocument, step_id: str) -> StepEntry | None:
    """Return the entry of a step that a fact can be about: a map hears of its chunks alone."""
    entry = run.steps.get(step_id)
    is_live = entry is not None and entry.status in ("active", "parked")
    return entry if is_live and not isinstance(plan.steps[step_id], MapStep) else None


def _step_ended(plan: Plan, run: RunDocument, event: StepEnded, moment: Moment) -> RunDocument:
    if parse_chunk(event.step):
        return _chunk_ended(plan, run, event, moment)
    entry = _under_way(plan, run, event.step)
    if entry is None:
        return run
    if event.outcome == "cancelled":
        return run
    done = StepEntry(
        status=event.outcome,
        iterations=event.iterations,
        started_ms=entry.started_ms,
        ended_ms=moment.ms,
        event=event.event,
        failure=event.failure,
        position=event.position,
        spent=event.spent,
    )
    return over(plan, run, plan.steps[event.step], done, moment)


def _chunk_ended(plan: Plan, run: RunDocument, event: StepEnded, moment: Moment) -> RunDocument:
    run, entry = chunk_ended(plan, run, event, moment)
    return run if entry is None else over(plan, run, plan.steps[step_of(event.step)], entry, moment)


def _step_parked(plan: Plan, run: RunDocument, event: StepParked, moment: Moment) -> RunDocument:
    entry = _under_way(plan, run, event.step)
    if entry is None:
        return run
    if event.position <= entry.position:
        return run
    if event.waits:
        failure = Failure(WAITING, event.reason, retryable=False)
    elif event.failure is not None:
        failure = msgspec.structs.replace(
            event.failure,
            type=event.reason,
            message=f"its attempts are used up, the last failed with {event.failure}; resume it "
            "to give it as many again",
            retryable=False,
        )
    else:
        failure = Failure(event.reason, "parked; resume it with a raised bound", retryable=False)
    parked = StepEntry(
        status="parked",
        iterations=event.iterations,
        started_ms=entry.started_ms,
        event=event.event,
        failure=failure,
        position=event.position,
        spent=event.spent,
    )
    return settled(plan, with_step(run, event.step, parked), moment)


def _step_resumed(plan: Plan, run: RunDocument, event: StepResumed, moment: Moment) -> RunDocument:
    entry = _under_way(plan, run, event.step)
    if entry is None:
        return run
    if event.position <= entry.position:
        return run
    active = StepEntry(
        status="active",
        started_ms=entry.started_ms,
        event=event.event,
        position=event.position,
    )
    return settled(plan, with_step(run, event.step, active), moment)


# ------------------------------------------------------------------ signals, timers, the end


def _signal(plan: Plan, run: RunDocument, event: SignalReceived, moment: Moment) -> RunDocument:
    received = receive(run, event, moment)
    if received is run:
        return run
    for step in plan.steps.values():
        if not isinstance(step, SignalStep) or step.signal != event.name:
            continue
        entry = received.steps.get(step.id)
        if entry is not None and entry.status == "active":
            received = consume(received, step, moment)
            if received.undoing:
                return undo(plan, received, moment)
            return go_on(plan, received, plan.followers[step.id], moment)
    return received


def _resume(plan: Plan, run: RunDocument, event: ResumeRequested, moment: Moment) -> RunDocument:
    """Raise its budget, end its pause and start what that held back.

    Steps that are parked, or held in their registers, are moved on by these.
    """
    run = budget.raised(run, event, moment)
    if event.step:
        return run
    resumed = pausing.resumed(run, moment)
    if resumed is run or resumed.is_paused or run.status != pausing.PAUSED:
        return resumed
    return progress.resume(plan, resumed, moment)


def _beginning(run: RunDocument) -> str:
    """Return from what on the time of a run counts."""
    if run.lane:
        return "start in its lane"
    return "start" if run.starts_ms else "request"


def _timer(run: RunDocument, event: TimerFired, moment: Moment, plan: Plan) -> RunDocument:
    if event.kind == "run_start":
        if not scheduling.is_due(run, moment):
            return run
        return scheduling.due(run) or _begin(plan, run, moment)
    if event.kind == "run_deadline":
        if not run.deadline_ms or moment.ms < run.deadline_ms or run.undoing:
            return run
        text = f"{_timeout_ms(plan) / 1000:g} s after its {_beginning(run)}"
        if run.parent and run.deadline_ms == _parents_deadline_ms(run):
            text = f"{run.parent.timeout_ms / 1000:g} s after its request"
        failure = Failure("run_timeout", f"the run was not finished {text}", retryable=False)
        return stop(plan, run, "failed", moment, failure=failure)
    entry = run.steps.get(event.step)
    if entry is None or entry.status != "active":
        return run
    step = plan.steps[event.step]
    if isinstance(step, SubWorkflowStep):
        return children.woken(run, step, moment)
    if isinstance(step, SleepStep):
        due_ms = wakes_ms(step, entry.started_ms, entry.due_ms)
        ended = StepEnded(step.id, "completed", 0, event=moment.id)
    elif isinstance(step, WaitStep) and step.timeout_s:
        due_ms = expires_ms(step, entry.started_ms)
        ended = waits.timed_out(step, moment)
    else:
        return run
    return run if moment.ms < due_ms else _step_ended(plan, run, ended, moment)
