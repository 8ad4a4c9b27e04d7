"""What a person should know of a run that has not ended: why it waits, and what to do.

Pure: it is given where the steps stand (``view.py``) and which processes live.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from treadle.sdk.asks import Ask
from treadle.sdk.client.bounds import Bound
from treadle.sdk.client.raising import budget_text, raise_budget, raise_past, used_text
from treadle.sdk.lanes import Ahead
from treadle.sdk.limits import LOSSES_MAX
from treadle.sdk.messages import WorkerPresence
from treadle.sdk.presence import BLOCKED_REMEDY, describe_blocked
from treadle.sdk.run import MAX_ATTEMPTS, PROVIDER_BUSY, WAITING, Pause, RunDocument
from treadle.sdk.spending import RUN_BUDGET, SharedBudget, shared_reached
from treadle.sdk.times import date
from treadle.sdk.wording import Suggestions

if TYPE_CHECKING:
    from treadle.sdk.client.view import StepView

TYPES_SHOWN_MAX = 10
"""Task types named in one note: a typing error is seen among as many."""

ASKS_SHOWN_MAX = 10
HOLDERS_SHOWN_MAX = 3
"""Of a lane, in one line: of the others the command tells."""
INPUT_CHARS_SHOWN = 200
HASH_CHARS_SHOWN = 12
"""Of a sha256: enough to tell the arguments of one run apart."""

START_WORKER = "treadle worker FILE.py"
"""``FILE.py`` is for the reader to replace: no process tells which file it runs."""


NoteKind = Literal[
    "note",
    "engine_down",
    "requested",
    "scheduled",
    "version_kept",
    "lane_queued",
    "lane_next",
    "unserved",
    "worker_lost",
    "blocked",
    "maybe_blocked",
    "ask",
    "signal_wait",
    "event_wait",
    "child_wait",
    "message_wait",
    "timed_wait",
    "provider_busy",
    "parked",
    "paused",
    "undoing",
]


class Note(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something a person should know or do."""

    text: str
    command: str = ""
    """What to run next."""
    kind: NoteKind = "note"
    step: str = ""
    """The step it is about; empty for the run."""


class Newer(msgspec.Struct, frozen=True):
    """The version under which a parked loop would go on, which is not its own."""

    version: str
    bounds: tuple[Bound, ...] = ()
    """Those of the version that stop it again."""


NONE_NEWER: Mapping[str, Newer] = {}


def notes_of(
    document: RunDocument,
    steps: Sequence[StepView],
    presence: Sequence[WorkerPresence],
    ahead: Ahead | None = None,
    newer: Mapping[str, Newer] = NONE_NEWER,
) -> tuple[Note, ...]:
    """Return what a person should know of a live run."""
    notes = list(engine_notes(presence))
    if document.status == "scheduled":
        notes.append(_scheduled_note(document))
    if document.status == "queued" and ahead is not None:
        notes.append(_queued_note(document.lane, ahead))
    if document.pause is not None and document.is_paused:
        notes.append(_paused_note(document.run, document.pause, steps))
    if document.undoing:
        notes.append(_undoing_note(document))
    for step in steps:
        if step.asks and step.status in ("parked", "active"):
            notes.extend(_ask_notes(document.run, step))
        elif step.line:
            notes.append(_line_note(step))
        elif step.status == "parked":
            notes.append(_parked_note(document.run, step, newer.get(step.id)))
        elif step.doing == "awaiting_signal":
            notes.append(
                Note(
                    f"step {step.id!r} waits for the signal {step.signal!r}{_at_the_end(step)}",
                    f"treadle run signal {document.run} {step.signal}",
                    "signal_wait",
                    step.id,
                )
            )
        elif step.doing == "awaiting_event":
            fits = f" with {step.match}" if step.match else ""
            payload = " --payload JSON" if step.match else ""
            notes.append(
                Note(
                    f"step {step.id!r} waits for the event {step.event!r}{fits}{_at_the_end(step)}",
                    f"treadle event publish {step.event}{payload}",
                    "event_wait",
                    step.id,
                )
            )
        elif step.doing == "awaiting_child":
            notes.append(_child_note(step))
        elif step.status == "active" and step.type and step.doing != "paused":
            notes.extend(_worker_notes(step, document, presence))
    return tuple(notes)


def _at_the_end(step: StepView) -> str:
    """Return until when a step waits for what somebody else sends, and what happens then."""
    if not step.on_timeout:
        return ""
    then = "completes with null" if step.on_timeout == "complete" else "fails with reason timeout"
    return f" (until {date(step.due_ms)}; it {then} then)"


def _paused_note(run: str, pause: Pause, steps: Sequence[StepView]) -> Note:
    why = f": {pause.reason}" if pause.reason else ""
    left = [step.id for step in steps if step.doing == "queued_or_running"]
    under_way = f"; under way, and allowed to finish: {', '.join(left)}" if left else ""
    text = f"the run is paused{why} (since {date(pause.since_ms)}), so nothing of it starts"
    return Note(f"{text}{under_way}", f"treadle run resume {run}", "paused")


def _child_note(step: StepView) -> Note:
    text = f"step {step.id!r} waits for run {step.child} of workflow {step.workflow!r}"
    return Note(text, f"treadle explain {step.child}", "child_wait", step.id)


def _scheduled_note(document: RunDocument) -> Note:
    text = f"it begins at {date(document.starts_ms)}"
    if document.lane:
        text = f"{text}, and enters lane {document.lane!r} then"
    return Note(text, f"treadle run cancel {document.run}", "scheduled")


def version_note(step: str, why: str) -> Note:
    """Return that a loop which takes newer versions keeps its own."""
    return Note(f"step {step!r} keeps its version: {why}", "", "version_kept", step)


def _undoing_note(document: RunDocument) -> Note:
    why = "it was cancelled" if document.undoing == "cancelled" else str(document.failure)
    at = f" at step {document.failed_step!r}" if document.failed_step else ""
    text = f"it undoes what has completed, and ends {document.undoing} then{at}: {why}"
    return Note(text, f"treadle run show {document.run}", "undoing")


def engine_notes(presence: Sequence[WorkerPresence]) -> tuple[Note, ...]:
    """Return the note that no engine runs, if none does."""
    if any(process.role == "engine" for process in presence):
        return ()
    return (Note("no engine is running, so nothing moves", "treadle engine", "engine_down"),)


def queued_text(lane: str, ahead: Ahead) -> str:
    """Return where a queued run stands, in words."""
    more = "more than " if ahead.is_more else ""
    runs = "run" if ahead.count == 1 and not ahead.is_more else "runs"
    names = ahead.holders[:HOLDERS_SHOWN_MAX]
    left = len(ahead.holders) - len(names)
    more_hold = f" and {left} more" if left > 0 else ""
    held = f", held by {', '.join(names)}{more_hold}" if names else ""
    at_once = f" ({ahead.places} at a time)" if ahead.places > 1 else ""
    return f"queued in lane {lane!r}{at_once} behind {more}{ahead.count} {runs}{held}"


def _queued_note(lane: str, ahead: Ahead) -> Note:
    if ahead.count < ahead.places:
        return Note(f"first in lane {lane!r}, about to start", kind="lane_next")
    command = f"treadle run show {ahead.holder}" if ahead.holder else ""
    return Note(queued_text(lane, ahead), command, "lane_queued")


# ---------------------------------------------------------------- workers


def _worker_notes(
    step: StepView, document: RunDocument, presence: Sequence[WorkerPresence]
) -> list[Note]:
    workers = [process for process in presence if process.role == "worker"]
    serving = [
        worker
        for worker in workers
        if worker.domain == document.domain and step.type in worker.types
    ]
    notes: list[Note] = []
    if step.losses:
        notes.append(_lost_note(step, document.run, is_served=bool(serving)))
    elif not serving:
        notes.append(_unserved_note(step, document.domain, workers))
    if step.doing not in ("sleeping", "limited"):  # No worker has any part in it.
        notes.extend(_blocked_notes(step, document.run, serving))
    return notes


def _lost_note(step: StepView, run: str, *, is_served: bool) -> Note:
    times = "once" if step.losses == 1 else f"{step.losses} times"
    what = f"iteration {step.iteration}" if step.kind == "agent_loop" else "it"
    text = (
        f"step {step.id!r}: its worker died or stopped {times} while executing {what} "
        f"(losses: {step.losses} of at most {LOSSES_MAX})"
    )
    if step.losses > 1:
        text += "; its handler may be what ends the process: see the worker's log"
    if is_served:
        return Note(text, f"treadle run history {run}", "worker_lost", step.id)
    text = f"{text}; none that serves task type {step.type!r} is left"
    return Note(text, START_WORKER, "unserved", step.id)


def _unserved_note(step: StepView, domain: str, workers: Sequence[WorkerPresence]) -> Note:
    near = [worker for worker in workers if worker.domain == domain]
    far = sorted({worker.domain for worker in workers if step.type in worker.types})
    if far:
        text = (
            f"no worker of this run's domain {domain!r} serves task type {step.type!r}; workers "
            f"of domain {', '.join(map(repr, far))} do"
        )
    elif not near:
        text = f"no worker serves task type {step.type!r}: none is running"
    else:
        told = "worker runs" if len(near) == 1 else "workers run"
        types = sorted({name for worker in near for name in worker.types})
        more = len(types) - TYPES_SHOWN_MAX
        like = Suggestions().nearest(step.type, types)
        text = (
            f"{len(near)} {told}, none serves task type {step.type!r}; served: "
            f"{', '.join(types[:TYPES_SHOWN_MAX])}{f' and {more} more' if more > 0 else ''}. "
            f"{f'Did you mean {like!r}? Or start' if like else 'Start'} one whose file has "
            f'@worker.handler("{step.type}")'
        )
    return Note(f"step {step.id!r}: {text}", START_WORKER, "unserved", step.id)


def _blocked_notes(step: StepView, run: str, serving: Sequence[WorkerPresence]) -> list[Note]:
    # Which worker was given the task is not stored: one that goes round may have it too.
    none_is_free = all(worker.blocked_ms for worker in serving)
    waits = "waits" if none_is_free else "may wait"
    notes: list[Note] = []
    for worker in serving:
        if worker.blocked_ms:
            is_cause = (worker.blocked_run, worker.blocked_type) == (run, step.type)
            relation = "blocks its worker" if is_cause else f"{waits} for a blocked worker"
            text = f"step {step.id!r} {relation}: {describe_blocked(worker)}; {BLOCKED_REMEDY}"
            kind: NoteKind = "blocked" if is_cause or none_is_free else "maybe_blocked"
            notes.append(Note(text, kind=kind, step=step.id))
    return notes


# ---------------------------------------------------------------- bounds


def _parked_note(run: str, step: StepView, newer: Newer | None) -> Note:
    why = step.failure.type if step.failure else "a bound"
    if why == WAITING:
        return _waiting_note(run, step)
    if step.failure is not None and why == MAX_ATTEMPTS:
        text = f"step {step.id!r} is parked: {step.failure.message}"
        return Note(text, f"treadle run resume {run}", "parked", step.id)
    at = f" after {step.iterations} iterations" if step.iterations else ""
    if newer is not None:
        return _newer_note(run, step, f"step {step.id!r} is parked at {why}{at}", newer)
    if step.budgets and why == RUN_BUDGET:
        if budget := shared_reached(step.budgets, step.spent):
            return _budget_note(run, step, budget)
        text = f"step {step.id!r} is parked at {why}{at}; what it shares has room again: "
        text += "; ".join(_budget_text(each, step) for each in step.budgets)
        return Note(text, f"treadle run resume {run}", "parked", step.id)
    used = used_text(why, step.limits, step.spent)
    late_ms = step.since_ms - step.deadline_ms if step.deadline_ms else 0
    options = raise_past(why, step.limits, step.spent, late_ms)
    text = f"step {step.id!r} is parked at {why}{at}{f', {used} used' if used else ''}"
    return Note(text, f"treadle run resume {run} {options}", "parked", step.id)


def _newer_note(run: str, step: StepView, parked: str, newer: Newer) -> Note:
    """Of a loop that goes on under a newer version: it counts what that one makes of its bounds."""
    version = f"version {newer.version}, the newest of its workflow"
    command = f"treadle run resume {run}"
    if newer.bounds:
        stops = ", ".join(f"{bound.name} ({bound.used})" for bound in newer.bounds)
        text = f"{parked}; under {version}, it would stop again at {stops}"
        options = " ".join(bound.options for bound in newer.bounds)
        return Note(text, f"{command} {options}", "parked", step.id)
    if budget := shared_reached(step.budgets, step.spent):
        return _budget_note(run, step, budget)
    return Note(f"{parked}; a resume lets it go on under {version}", command, "parked", step.id)


def _budget_text(budget: SharedBudget, step: StepView) -> str:
    return f"{budget_text(budget, step.spent)} of the budget of run {budget.run!r} used"


def _budget_note(run: str, step: StepView, budget: SharedBudget) -> Note:
    """Of a budget that the step shares: it is raised where it is, and then the step is resumed."""
    text = f"step {step.id!r} is parked: {_budget_text(budget, step)}"
    command = f"treadle run resume {budget.run} {raise_budget(budget, step.spent)}"
    if budget.run != run:
        command = f"{command} && treadle run resume {run}"
    return Note(text, command, "parked", step.id)


def ask_note(run: str, step: str, ask: Ask, at_the_end: str = "") -> Note:
    """Return what is asked, in a line, and the command that answers it."""
    call = f"{ask.tool}({_shown(ask)})"
    match ask.kind:
        case "approval" if not ask.tool:
            asked = ask.text or "may it go on?"
        case "approval":
            asked = f"may {call} run? {ask.text}"
        case "unsafe":
            asked = f"has {call} run? {ask.text}"
        case "question":
            options = f" ({' | '.join(ask.options)})" if ask.options else ""
            asked = f"{ask.text}{options}"
    text = f"step {step!r} asks {f'{ask.to}: ' if ask.to else ''}{asked.rstrip()}"
    if at_the_end or ask.due_ms:
        text += at_the_end or f" (until {date(ask.due_ms)})"
    if ask.problem:
        text = f"{text} The last answer was not taken: {ask.problem}"
    return Note(text, _answer_command(run, ask), "ask", step)


def _answer_command(run: str, ask: Ask) -> str:
    place = f"{shlex.quote(ask.id)} --run {run}"
    match ask.kind:
        case "approval":
            bound = f" --hash {ask.args_hash[:HASH_CHARS_SHOWN]}" if ask.args_hash else ""
            # The name of this system's user, which is the default, may not be one of them.
            by = f" --by {shlex.quote(ask.approvers[0])}" if ask.approvers else ""
            return f"treadle approvals approve {place}{bound}{by}"
        case "unsafe":
            return f"treadle approvals show {place}"
        case "question":
            return f"treadle approvals answer {place} --text TEXT"


def _shown(ask: Ask) -> str:
    raw = bytes(ask.input).decode(errors="replace")
    is_short = len(raw) <= INPUT_CHARS_SHOWN and not ask.full_bytes
    return raw if is_short else f"{raw[:INPUT_CHARS_SHOWN]}…"


def _ask_notes(run: str, step: StepView) -> list[Note]:
    asks, at_the_end = step.asks[:ASKS_SHOWN_MAX], _at_the_end(step)
    notes = [ask_note(run, step.id, ask, at_the_end) for ask in asks]
    if (more := len(step.asks) - ASKS_SHOWN_MAX) > 0:
        command = f"treadle approvals list --run {run}"
        notes.append(Note(f"step {step.id!r} asks {more} more", command, "ask", step.id))
    return notes


def _line_note(step: StepView) -> Note:
    when = f" (it looks by itself at {date(step.due_ms)}, and goes on as soon as it is called)"
    text = f"step {step.id!r} waits: {step.waits_for}{when}"
    return Note(text, "treadle limits", "provider_busy", step.id)


def _waiting_note(run: str, step: StepView) -> Note:
    reason = step.failure.message if step.failure else ""
    is_busy = reason.startswith(PROVIDER_BUSY)
    what = "waits" if is_busy else "waits for a message"
    text = f"step {step.id!r} {what}{f': {reason}' if reason else ''}"
    if step.due_ms:
        text = f"{text} (it goes on by itself at {date(step.due_ms)})"
        kind: NoteKind = "provider_busy" if is_busy else "timed_wait"
        return Note(text, f"treadle run resume {run} --step {step.id}", kind, step.id)
    return Note(text, f"treadle run steer {run} {step.id} TEXT", "message_wait", step.id)
