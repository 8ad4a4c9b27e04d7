"""Where a run stands, for a reader: its document, joined with the registers of its live steps.

Pure: it is given what was read (``store.py``) and says what it means; ``notes.py`` adds what a
person should know.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, assert_never

import msgspec

from treadle.sdk import choices
from treadle.sdk.approvals import ask_of
from treadle.sdk.asks import Ask
from treadle.sdk.children import ParentRun
from treadle.sdk.client.bounds import Stops, own_stops
from treadle.sdk.client.ending import ViewedStepStatus, timed_out
from treadle.sdk.client.notes import Note, engine_notes, notes_of
from treadle.sdk.client.origin import ForkedFrom, origin_of
from treadle.sdk.definition import (
    AgentLoopStep,
    ApprovalStep,
    ChoiceStep,
    EventStep,
    MapStep,
    OnTimeout,
    RespondStep,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    TaskStep,
    WaitStep,
    WorkflowDefinition,
    expires_ms,
    wakes_ms,
)
from treadle.sdk.errors import StoredUnreadable, UserError
from treadle.sdk.lanes import Ahead
from treadle.sdk.messages import (
    Delayed,
    Ended,
    Failure,
    MetadataValue,
    Parked,
    Queued,
    Register,
    RunRequested,
    Sleeping,
    Task,
    WorkerPresence,
)
from treadle.sdk.run import (
    TERMINAL,
    MapState,
    Pause,
    RunDocument,
    RunStatus,
    StepEntry,
    child_of,
    is_kept,
)
from treadle.sdk.spending import NOTHING, UNLIMITED, SharedBudget, SpendingLimits, Spent

ViewStatus = RunStatus | Literal["requested", "unreadable"]
Doing = Literal[
    "",
    "queued_or_running",
    "limited",
    "delayed",
    "sleeping",
    "parked",
    "paused",
    "waiting",
    "awaiting_signal",
    "awaiting_event",
    "awaiting_approval",
    "mapping",
    "awaiting_child",
]


class StepView(msgspec.Struct, frozen=True, kw_only=True):
    """Where one step stands."""

    id: str
    kind: str
    type: str = ""
    """Task type; empty for a signal step."""
    status: ViewedStepStatus = "waiting"
    doing: Doing = ""
    """What an active step is at; empty when it is not active."""
    after: tuple[str, ...] = ()
    signal: str = ""
    event: str = ""
    """Name of the published event that it waits for."""
    match: str = ""
    """Condition of that event."""
    workflow: str = ""
    """Of a step that starts runs: of which workflow."""
    child: str = ""
    """The run that such a step has started last."""
    detached: bool = False
    """It does not wait for that run."""
    iteration: int = 0
    """The iteration that is due, counted from 0."""
    attempt: int = 0
    losses: int = 0
    """Attempts of this iteration whose worker vanished."""
    max_iterations: int = 0
    """Of an agent loop; a live one's may have been raised."""
    iterations: int = 0
    """Committed iterations."""
    is_kept: bool = False
    """It was taken over of the run that this one was made of, with its times."""
    since_ms: int = 0
    """Since when it does what it is doing."""
    due_ms: int = 0
    """When a delayed, sleeping or waiting step goes on; 0 is never by itself."""
    on_timeout: OnTimeout | Literal[""] = ""
    """Of a wait whose time is bounded: what its end does."""
    timed_out: OnTimeout | Literal[""] = ""
    """Of a wait whose time was over: what that did."""
    deadline_ms: int = 0
    started_ms: int = 0
    ended_ms: int = 0
    failure: Failure | None = None
    """Why it failed; of an active step, why its last attempt failed; of one that waits, for
    what."""
    spent: Spent = NOTHING
    """What it has used, as far as its executions told."""
    limits: SpendingLimits = UNLIMITED
    """Bounds on that, of a live step."""
    version: str = ""
    """Of a live loop that takes newer versions: the one of this iteration."""
    budgets: tuple[SharedBudget, ...] = ()
    """Of the run and of those above it, which a live loop shares: as they stood at its last
    boundary, or of one that is parked as they stand now."""
    asks: tuple[Ask, ...] = ()
    """What people are asked, of one that waits."""
    line: str = ""
    """Of one that waits for a provider's budget: the key of that, as limits have it."""
    waits_for: str = ""
    """Of such a step: for what, in words."""
    branch: str = ""
    """Of a choice that has completed: the branch it took."""
    why: str = ""
    """Of such a choice: why."""
    items: int = 0
    """Of a map that has begun: how many its list has."""
    items_done: int = 0
    """Those of the chunks that are over, the failed ones included."""
    items_failed: int = 0
    """Those that failed for good."""
    chunks: int = 0
    """Tasks into which its list is cut."""


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a run stands."""

    id: str
    workflow: str
    status: ViewStatus
    """``requested`` until an engine has taken the run; ``unreadable`` in a listing, if its document
    cannot be read."""
    definition: str = ""
    requested_ms: int = 0
    deadline_ms: int = 0
    starts_ms: int = 0
    """When a scheduled run begins, or was to begin; 0 is at once."""
    ended_ms: int = 0
    failure: Failure | None = None
    failed_step: str = ""
    steps: tuple[StepView, ...] = ()
    signals_waiting: dict[str, int] = {}
    """Signals that no step has consumed yet: name to count."""
    metadata: Mapping[str, MetadataValue] = {}
    parent: ParentRun | None = None
    """The step of another run that started it."""
    lane: str = ""
    ahead: Ahead | None = None
    """Of a queued run: what has to end before it starts."""
    forked_from: ForkedFrom | None = None
    """The run it was made of; None if it was not forked."""
    pause: Pause | None = None
    """Since when and why nothing of the run may start; None if it is not paused."""
    notes: tuple[Note, ...] = ()

    @property
    def is_terminal(self) -> bool:
        """True when the status can change no more."""
        return self.status in TERMINAL

    def step(self, step_id: str) -> StepView:
        """Return the step of that id; raise ``KeyError`` if there is none."""
        for step in self.steps:
            if step.id == step_id:
                return step
        raise KeyError(step_id)


class Held(msgspec.Struct, frozen=True):
    """A register as it was read, and when it was written."""

    register: Register
    time_ms: int
    sequence: int = 0
    """The token: what an execution holds that may settle it."""


def no_step(run: str, workflow: str, known: Sequence[str], step: str) -> UserError:
    """Return the error that a run's workflow has no step of that id."""
    return UserError(
        f"run {run!r} has no step {step!r}: workflow {workflow!r} has "
        f"{', '.join(map(repr, known))}. Name one of these, or none for all."
    )


def damaged_note(run: str, error: StoredUnreadable) -> Note:
    """Return what to know and do about a live step whose register cannot be read."""
    return Note(str(error), f"treadle run cancel {run}")


def of_unreadable(error: StoredUnreadable) -> RunView:
    """Return the view of a run whose document cannot be read: its key, and what is wrong."""
    return RunView(
        id=error.key,
        workflow="",
        status="unreadable",
        requested_ms=error.written_ms,
        failure=Failure(type(error).__name__, str(error), retryable=False),
    )


def of_request(
    run: str,
    requested: RunRequested,
    time_ms: int,
    definition: WorkflowDefinition | None,
    presence: Sequence[WorkerPresence] | None,
) -> RunView:
    """Return the view of a run that no engine has taken yet; without presence, without notes."""
    notes: tuple[Note, ...] = ()
    if presence is not None:
        notes = (
            Note("requested, not yet taken by an engine", kind="requested"),
            *engine_notes(presence),
        )
    steps = definition.steps if definition else ()
    return RunView(
        id=run,
        workflow=requested.workflow,
        status="requested",
        definition=requested.definition,
        requested_ms=time_ms,
        steps=tuple(_step_view(None, step.id, step, None) for step in steps),
        parent=requested.parent,
        metadata=requested.metadata,
        lane=requested.lane,
        forked_from=origin_of(requested.fork),
        notes=notes,
    )


def of_document(
    document: RunDocument,
    definition: WorkflowDefinition | None,
    registers: Mapping[str, Held],
    presence: Sequence[WorkerPresence] | None,
    ahead: Ahead | None = None,
    stops: Mapping[str, Stops] | None = None,
) -> RunView:
    """Return the view of a run.

    Without its definition only steps that have begun are shown; without presence no notes.
    ``ahead`` is what stands before it, if it is queued; ``stops`` what stops its parked steps
    again, by their own versions unless it is given.
    """
    known = {step.id: step for step in definition.steps} if definition else {}
    names = [*known, *(name for name in document.steps if name not in known)]
    steps = tuple(
        _of_map(
            _step_view(document, name, known.get(name), registers.get(name)),
            document.maps.get(name),
        )
        for name in names
    )
    notes: tuple[Note, ...] = ()
    if presence is not None and not document.is_terminal:
        if stops is None:
            stops = own_stops({name: held.register for name, held in registers.items()})
        notes = notes_of(document, steps, presence, ahead, stops)
    return RunView(
        id=document.run,
        workflow=document.workflow,
        status=document.status,
        definition=document.definition,
        requested_ms=document.requested_ms,
        deadline_ms=document.deadline_ms,
        starts_ms=document.starts_ms,
        ended_ms=document.ended_ms,
        failure=document.failure,
        failed_step=document.failed_step,
        steps=steps,
        signals_waiting={name: len(events) for name, events in document.signals.items() if events},
        parent=document.parent,
        metadata=document.metadata,
        lane=document.lane,
        ahead=ahead,
        forked_from=origin_of(document.fork),
        pause=document.pause if document.is_paused else None,
        notes=notes,
    )


def _step_view(
    run: RunDocument | None, name: str, step: Step | None, held: Held | None
) -> StepView:
    entry = run.steps.get(name) if run else None
    branch = run.chosen.get(name, "") if run else ""
    view = StepView(id=name, kind="")
    match step:
        case TaskStep() | AgentLoopStep() | MapStep():
            kind = str(step.__struct_config__.tag)
            bound = step.max_iterations if isinstance(step, AgentLoopStep) else 0
            view = StepView(
                id=name, kind=kind, type=step.type, after=step.after, max_iterations=bound
            )
        case SignalStep():
            view = StepView(id=name, kind="signal", signal=step.signal, after=step.after)
        case EventStep():
            view = StepView(
                id=name, kind="event", event=step.event, match=step.match, after=step.after
            )
        case SleepStep():
            view = StepView(id=name, kind="sleep", after=step.after, due_ms=_wakes_ms(step, entry))
        case ApprovalStep():
            view = StepView(id=name, kind="approval", after=step.after)
            if entry is not None and entry.status == "active":
                ask = ask_of(step, entry.started_ms)
                view = msgspec.structs.replace(view, asks=(ask,))
        case ChoiceStep():
            view = StepView(id=name, kind="choice", after=step.after)
            if branch:
                why = choices.reason(step, branch)
                view = msgspec.structs.replace(view, branch=branch, why=why)
        case RespondStep():
            why = f"answers with status {step.status}"
            view = StepView(id=name, kind="respond", after=step.after, why=why)
        case SubWorkflowStep():
            view = StepView(
                id=name,
                kind="sub_workflow",
                workflow=step.workflow,
                detached=step.detached,
                after=step.after,
            )
        case None:
            pass
        case _:
            assert_never(step)
    if run is None:
        return view
    if entry is None:
        is_late = run.is_terminal
        return msgspec.structs.replace(view, status="not_reached") if is_late else view
    if isinstance(step, SubWorkflowStep) and entry.attempt:
        view = msgspec.structs.replace(
            view,
            attempt=entry.attempt,
            due_ms=entry.due_ms,
            child=child_of(run, name, entry.attempt - bool(entry.due_ms)),
        )
    if isinstance(step, WaitStep) and step.timeout_s and entry.status == "active":
        due_ms = expires_ms(step, entry.started_ms)
        view = msgspec.structs.replace(view, due_ms=due_ms, on_timeout=step.on_timeout)
    view = msgspec.structs.replace(
        view,
        status=entry.status,
        iterations=entry.iterations,
        started_ms=entry.started_ms,
        ended_ms=entry.ended_ms,
        failure=entry.failure,
        spent=entry.spent,
        is_kept=is_kept(run, name),
        timed_out=timed_out(run, step, entry),
    )
    if entry.status in ("active", "parked"):
        return live(view, held)
    return _over(view, entry, held)


def _over(view: StepView, entry: StepEntry, held: Held | None) -> StepView:
    """Return the view of a step that has ended.

    To what a resume, or a newer version, had raised its bound is not stored: one that it has
    passed is not shown.
    """
    if entry.status == "cancelled" and held is not None and isinstance(held.register, Ended):
        # The end of the run ended it: only its register knows how far it had come.
        ended = held.register
        view = msgspec.structs.replace(view, iterations=ended.iterations, spent=ended.spent)
    if view.iterations > view.max_iterations:
        return msgspec.structs.replace(view, max_iterations=0)
    return view


def _of_map(view: StepView, state: MapState | None) -> StepView:
    if state is None:
        return view
    is_active = view.status == "active"
    return msgspec.structs.replace(
        view,
        doing="mapping" if is_active else view.doing,
        since_ms=view.started_ms if is_active else view.since_ms,
        items=state.items,
        items_done=state.done,
        items_failed=state.failed,
        chunks=state.chunks,
    )


def _wakes_ms(step: SleepStep, entry: StepEntry | None) -> int:
    is_asleep = entry is not None and entry.status == "active"
    return wakes_ms(step, entry.started_ms, entry.due_ms) if entry and is_asleep else 0


def live(view: StepView, held: Held | None) -> StepView:
    """Return an active step, or a chunk of a map, with what its register says."""
    if held is None:
        if view.kind == "signal":
            return msgspec.structs.replace(view, doing="awaiting_signal", since_ms=view.started_ms)
        if view.kind == "event":
            return msgspec.structs.replace(view, doing="awaiting_event", since_ms=view.started_ms)
        if view.kind == "sleep":
            return msgspec.structs.replace(view, doing="sleeping", since_ms=view.started_ms)
        if view.kind == "approval":
            since_ms = view.started_ms
            return msgspec.structs.replace(view, doing="awaiting_approval", since_ms=since_ms)
        if view.kind == "sub_workflow":
            doing_now: Doing = "delayed" if view.due_ms else "awaiting_child"
            return msgspec.structs.replace(view, doing=doing_now, since_ms=view.started_ms)
        return view
    register = held.register
    match register:
        case Task():
            return _of_task(view, register, "queued_or_running", held.time_ms, 0)
        case Queued():
            return _of_task(view, register.task, "limited", register.since_ms, 0)
        case Delayed():
            return _of_task(view, register.task, "delayed", held.time_ms, register.due_ms)
        case Sleeping():
            return _of_task(view, register.task, "sleeping", held.time_ms, register.due_ms)
        case Parked():
            doing: Doing = "waiting" if register.waits else "parked"
            if register.paused:
                doing = "paused"
            view = msgspec.structs.replace(view, asks=register.asks)
            if register.line:
                view = msgspec.structs.replace(view, line=register.line, waits_for=register.reason)
            return _of_task(view, register.task, doing, register.parked_ms, register.due_ms)
        case Ended():
            # The document is about to follow; the register is the truth of the step.
            return msgspec.structs.replace(
                view,
                status=register.outcome,
                iterations=register.iterations,
                ended_ms=register.ended_ms,
                failure=register.failure,
                spent=register.spent,
            )
        case _:
            assert_never(register)


def _of_task(view: StepView, task: Task, doing: Doing, since_ms: int, due_ms: int) -> StepView:
    return msgspec.structs.replace(
        view,
        doing=doing,
        iteration=task.iteration,
        iterations=task.counted,
        attempt=task.attempt,
        losses=task.losses,
        max_iterations=task.counted_max if task.loop else 0,
        since_ms=since_ms,
        due_ms=due_ms,
        deadline_ms=task.deadline_ms,
        started_ms=task.started_ms or view.started_ms,
        failure=view.failure or task.last_failure,
        spent=task.spent + task.spent_now,
        limits=task.limits,
        version=task.definition if task.follows else "",
        budgets=task.budgets,
    )
