"""What follows when a step is over: others start or are skipped, and at last the run ends.

    turn ──start──> active | deciding ──condition, list──> active | skipped | failed
    deciding ──first branch that holds──> completed     a choice
    turn ──skip───> skipped
    active ──at once──> completed      an early signal, a sleep that is over already, a response,
                                       a map over an empty list
    every step is over ──> the run is completed
    a failure that nothing handles ──> the run undoes what has completed, and fails

A step that is over at once may start others: a loop and not a recursion, because a thousand such
steps may stand in a row.

Of a paused run no step begins, and what is under way settles as ever: what can only be skipped is
skipped, and a run that nothing is held of may end. Whatever was held begins with the resume.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from treadle.engine.core import maps, pausing, undoing, waits
from treadle.engine.core.facts import StepDecided
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan, is_decided
from treadle.engine.core.signals import consume
from treadle.engine.core.turns import is_handled, is_held, not_begun, turn_of, unmet
from treadle.sdk.definition import (
    ChoiceStep,
    EventStep,
    MapStep,
    RespondStep,
    SignalStep,
    SleepStep,
    Step,
    SubWorkflowStep,
    wakes_ms,
)
from treadle.sdk.messages import Failure
from treadle.sdk.run import NOT_BEGUN, UNDER_WAY, RunDocument, StepEntry, StepStatus

UNKNOWN = Failure("unknown", "the step's document names no cause", retryable=False)


def go_on(plan: Plan, run: RunDocument, candidates: Iterable[Step], moment: Moment) -> RunDocument:
    """Start or skip those of the candidates whose turn it is; end the run after the last step.

    A paused run starts none: those whose turn it is are found again by ``resume``.
    """
    waiting = list(candidates)
    while waiting and not (run.is_terminal or run.undoing):
        run, waiting = _wave(plan, run, waiting, moment)
    return run if run.is_terminal else settled(plan, run, moment)


def resume(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    """Start every step whose turn came while the run was paused, which it is no more."""
    if not run.undoing:
        return go_on(plan, run, not_begun(plan, run), moment)
    if _is_under_way(run):
        return settled(plan, run, moment)
    undone = undo(plan, run, moment)
    return undone if undone.is_terminal else settled(plan, undone, moment)


def over(plan: Plan, run: RunDocument, step: Step, entry: StepEntry, moment: Moment) -> RunDocument:
    """Write down that a step is over, and go on; a failure that nothing handles ends the run."""
    run = with_step(run, step.id, entry)
    if run.undoing:
        return undo(plan, run, moment)
    if entry.status == "failed" and not is_handled(plan, step):
        return fail(plan, run, step.id, moment)
    return go_on(plan, run, plan.followers[step.id], moment)


def fail(plan: Plan, run: RunDocument, step_id: str, moment: Moment) -> RunDocument:
    """Let the run fail with the failure of a step."""
    failure = run.steps[step_id].failure or UNKNOWN
    return stop(plan, run, "failed", moment, failure=failure, step=step_id)


def stop(
    plan: Plan,
    run: RunDocument,
    status: Literal["failed", "cancelled"],
    moment: Moment,
    *,
    failure: Failure,
    step: str = "",
) -> RunDocument:
    """Let the run end like this, after what has to be undone.

    A cancel ends the run's pause: it has to undo what is to be.
    """
    if status == "cancelled":
        run = pausing.lifted(run, moment)
    stopped = undoing.begins(plan, run, status, moment, failure=failure, step=step)
    return stopped if stopped.is_terminal else undo(plan, stopped, moment)


def goes_on_undoing(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    """Return a run that is undoing and cancelled again: its pause is over, and nothing else."""
    lifted = pausing.lifted(run, moment)
    if lifted is run:
        return run
    shown = msgspec.structs.replace(lifted, status=pausing.shown(lifted, "running"))
    return undo(plan, shown, moment)


def undo(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    """Start the next compensation of a run that is undoing; end the run after the last.

    A paused run starts none, and ends if it has none left.
    """
    while step := undoing.next_to_undo(plan, run):
        if run.is_paused:
            return run
        entry = _begins(step, moment)
        started = with_step(run, step.id, entry)
        run = _at_once(started, step, moment)
        if run is started:
            return run
    assert run.undoing
    return undoing.end(run, run.undoing, moment, failure=run.failure, step=run.failed_step)


def to_decide(plan: Plan, run: RunDocument) -> Step | None:
    """Return a step that has to be decided before the document is stored: see ``decided``."""
    asked = (name for name, entry in run.steps.items() if entry.status == "deciding")
    return next((plan.steps[name] for name in asked), None)


def decided(plan: Plan, run: RunDocument, event: StepDecided) -> RunDocument:
    """Let a step begin whose condition holds, a map with its list; skip it otherwise."""
    entry = run.steps.get(event.step)
    if entry is None or entry.status != "deciding":
        return run
    # As of when it was the step's turn: whoever asks the condition again says the same.
    step, moment = plan.steps[event.step], Moment(run.run, entry.event, entry.started_ms)
    if event.failure is not None:
        return over(plan, run, step, _over("failed", moment, event.failure), moment)
    if not event.holds:
        return over(plan, run, step, _over("skipped", moment), moment)
    if isinstance(step, ChoiceStep):
        run = msgspec.structs.replace(run, chosen={**run.chosen, step.id: event.branch})
        return over(plan, run, step, _over("completed", moment), moment)
    run = with_step(run, step.id, msgspec.structs.replace(entry, status="active"))
    if event.map is not None:
        assert isinstance(step, MapStep)
        run = maps.begun(run, step, event.map)
    if isinstance(step, SleepStep) and step.is_told:
        due_ms = event.until_ms or moment.ms + event.duration_ms
        run = with_step(run, step.id, msgspec.structs.replace(run.steps[step.id], due_ms=due_ms))
    begun = _at_once(run, step, moment)
    if begun is run:
        return settled(plan, run, moment)
    if begun.undoing:
        return undo(plan, begun, moment)
    return go_on(plan, begun, plan.followers[step.id], moment)


def settled(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    """Return the run with the status that its steps give it."""
    statuses = {entry.status: step_id for step_id, entry in run.steps.items()}
    if run.undoing:
        shown = pausing.shown(run, "parked" if "parked" in statuses else "running")
        return msgspec.structs.replace(run, status=shown)
    if "active" in statuses or "deciding" in statuses:
        shown = pausing.shown(run, "running")
        return msgspec.structs.replace(run, status=shown, failure=None, failed_step="")
    if parked := statuses.get("parked"):
        failure = run.steps[parked].failure
        shown = pausing.shown(run, "parked")
        return msgspec.structs.replace(run, status=shown, failure=failure, failed_step=parked)
    if is_held(plan, run):
        shown = pausing.shown(run, "running")
        return msgspec.structs.replace(run, status=shown, failure=None, failed_step="")
    return run if plan.definition.output_schema is not None else _completed(plan, run, moment)


def to_conclude(plan: Plan, run: RunDocument) -> bool:
    """True if the result of a run has to be looked at before the document is stored."""
    if plan.definition.output_schema is None or run.is_terminal or run.undoing:
        return False
    return run.status not in NOT_BEGUN and not _is_under_way(run) and not is_held(plan, run)


def concluded(plan: Plan, run: RunDocument, failure: Failure | None, moment: Moment) -> RunDocument:
    """Let a run end of which every step is over: completed, unless its result does not fit."""
    if failure is not None:
        return stop(plan, run, "failed", moment, failure=failure)
    return _completed(plan, run, moment)


def _completed(plan: Plan, run: RunDocument, moment: Moment) -> RunDocument:
    unused = {step_id: _over("skipped", moment) for step_id in plan.compensations}
    run = msgspec.structs.replace(run, steps={**run.steps, **unused})
    return undoing.end(run, "completed", moment)


def with_step(run: RunDocument, step_id: str, entry: StepEntry) -> RunDocument:
    """Return the run with this entry of a step."""
    return msgspec.structs.replace(run, steps={**run.steps, step_id: entry})


def _wave(
    plan: Plan, run: RunDocument, candidates: list[Step], moment: Moment
) -> tuple[RunDocument, list[Step]]:
    """Take the candidates one step further; return what may follow from those that are over."""
    entries: dict[str, StepEntry] = {}
    for step in candidates:
        if step.id in run.steps or step.id in entries:
            continue
        match turn_of(plan, run, step):
            case "start" if run.is_paused:
                pass
            case "start":
                entries[step.id] = _begins(step, moment)
            case "skip":
                entries[step.id] = _over("skipped", moment)
            case "fail":
                return fail(plan, run, unmet(plan, run, step), moment), []
            case "wait":
                pass
    run = msgspec.structs.replace(run, steps={**run.steps, **entries})
    for step_id, entry in entries.items():
        step = plan.steps[step_id]
        if isinstance(step, EventStep):
            run = waits.begins(plan, run, step)
        if entry.status == "active":
            run = _at_once(run, step, moment)
    following = [
        follower
        for step_id in entries
        if run.steps[step_id].status not in UNDER_WAY
        for follower in plan.followers[step_id]
    ]
    return run, following


def _is_under_way(run: RunDocument) -> bool:
    return any(entry.status in UNDER_WAY for entry in run.steps.values())


def _begins(step: Step, moment: Moment) -> StepEntry:
    status: StepStatus = "deciding" if is_decided(step) else "active"
    attempt = 1 if isinstance(step, SubWorkflowStep) else 0
    return StepEntry(status, started_ms=moment.ms, event=moment.id, attempt=attempt)


def _at_once(run: RunDocument, step: Step, moment: Moment) -> RunDocument:
    """Complete an active step that need not wait; the same object if it has to."""
    if isinstance(step, SignalStep) and step.signal in run.signals:
        return consume(run, step, moment)
    if isinstance(step, RespondStep):
        over_at_once = with_step(run, step.id, _over("completed", moment))
        return msgspec.structs.replace(over_at_once, responded=run.responded or step.id)
    if isinstance(step, MapStep) and step.id in run.maps and not run.maps[step.id].chunks:
        return with_step(run, step.id, _over("completed", moment))
    due_ms = run.steps[step.id].due_ms
    if isinstance(step, SleepStep) and wakes_ms(step, moment.ms, due_ms) <= moment.ms:
        return with_step(run, step.id, _over("completed", moment))
    return run


def _over(status: StepStatus, moment: Moment, failure: Failure | None = None) -> StepEntry:
    return StepEntry(
        status,
        started_ms=moment.ms,
        ended_ms=moment.ms,
        event=moment.id,
        failure=failure,
    )
