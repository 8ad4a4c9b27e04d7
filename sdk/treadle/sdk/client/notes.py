"""What a person should know of a run that has not ended: why it waits, and what to do.

Pure: it is given where the steps stand (``view.py``) and which processes live.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal

import msgspec

from treadle.sdk.asks import Ask
from treadle.sdk.client.bounds import (
    NO_STOPS,
    Bound,
    Stops,
    resume_commands,
    shared_used,
    stops_text,
)
from treadle.sdk.client.raising import budget_text
from treadle.sdk.lanes import Ahead
from treadle.sdk.limits import LOSSES_MAX
from treadle.sdk.messages import WorkerPresence
from treadle.sdk.presence import BLOCKED_REMEDY, describe_blocked
from treadle.sdk.run import MAX_ATTEMPTS, PROVIDER_BUSY, WAITING, Pause, RunDocument
from treadle.sdk.spending import RUN_BUDGET, SPENDING_REASONS
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


def notes_of(
    document: RunDocument,
    steps: Sequence[StepView],
    presence: Sequence[WorkerPresence],
    ahead: Ahead | None = None,
    stops: Mapping[str, Stops] | None = None,
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
            notes.append(_parked_note(document.run, step, (stops or {}).get(step.id, NO_STOPS)))
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
        elif step.doing == "mapping" and document.is_paused:
            pass  # The pause holds its chunks.
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


def _parked_note(run: str, step: StepView, stops: Stops) -> Note:
    why = step.failure.type if step.failure else "a bound"
    if why == WAITING:
        return _waiting_note(run, step, stops)
    at = f" after {step.iterations} iterations" if step.iterations else ""
    text = f"step {step.id!r} is parked at {why}{at}"
    left = stops.bounds
    shared = ", ".join(f"{used} of the budget of run {run!r}" for run, used in shared_used(left))
    if step.failure is not None and why == MAX_ATTEMPTS:
        text = _or_stops(f"step {step.id!r} is parked: {step.failure.message}", left)
    elif shared and all(bound.run for bound in left) and (stops.version or why == RUN_BUDGET):
        text = f"step {step.id!r} is parked: {shared} used"
    elif stops.version:
        version = f"version {stops.version}, the newest of its workflow"
        again = f"under {version}, it would stop again at {stops_text(left)}"
        text = f"{text}; {again if left else f'a resume lets it go on under {version}'}"
    elif why == RUN_BUDGET and not shared and step.budgets:
        budgets = (
            f"{budget_text(each, step.spent)} of the budget of run {each.run!r} used"
            for each in step.budgets
        )
        text = f"{text}; what it shares has room again: {'; '.join(budgets)}"
        text = _or_stops(text, left)
    else:
        is_it = [bound.name == why and not bound.run for bound in left]
        if is_it == [True]:
            used = f", {left[0].used} used" if why in SPENDING_REASONS else ""
            text = f"{text}{used}"
        else:
            text = _or_stops(text, left)
    return Note(text, resume_commands(run, left), "parked", step.id)


def _or_stops(text: str, left: Sequence[Bound]) -> str:
    return f"{text}; it would stop again at {stops_text(left)}" if left else text


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


def _waiting_note(run: str, step: StepView, stops: Stops) -> Note:
    reason = step.failure.message if step.failure else ""
    is_busy = reason.startswith(PROVIDER_BUSY)
    what = "waits" if is_busy else "waits for a message"
    text = f"step {step.id!r} {what}{f': {reason}' if reason else ''}"
    if step.due_ms:
        text = f"{text} (it goes on by itself at {date(step.due_ms)})"
        kind: NoteKind = "provider_busy" if is_busy else "timed_wait"
        return Note(text, resume_commands(run, stops.bounds, step.id), kind, step.id)
    return Note(text, f"treadle run steer {run} {step.id} TEXT", "message_wait", step.id)
