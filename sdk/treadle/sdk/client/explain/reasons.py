"""From facts to an explanation. Pure: every reason has its test with facts written by hand.

The notes of the run's view are reasons as they stand, with their times added; the others come from
what the notes cannot know.
"""

from __future__ import annotations

from treadle.sdk.client.explain.facts import EngineFacts, Facts, StorageFault
from treadle.sdk.client.explain.reason import Explanation, Level, Reason, decided
from treadle.sdk.client.explain.rings import ring_reason
from treadle.sdk.client.explain.steps import (
    OVERDUE_MS,
    halt_text,
    serving,
    silent_text,
    step_reason,
)
from treadle.sdk.client.notes import Note, NoteKind
from treadle.sdk.client.result import BETWEEN_ITERATIONS
from treadle.sdk.client.view import RunView
from treadle.sdk.errors import clause, sentence
from treadle.sdk.times import age, date, since

BEHIND_MS = 5_000
"""An engine that died has its events handled by another one after as long."""

_LEVELS: dict[NoteKind, Level] = {
    "note": "note",
    "engine_down": "problem",
    "requested": "works",
    "scheduled": "pause",
    "version_kept": "note",
    "lane_queued": "pause",
    "lane_next": "works",
    "unserved": "problem",
    "worker_lost": "note",
    "blocked": "problem",
    "maybe_blocked": "note",
    "ask": "waits",
    "signal_wait": "waits",
    "event_wait": "waits",
    "child_wait": "works",
    "message_wait": "waits",
    "timed_wait": "pause",
    "provider_busy": "pause",
    "parked": "waits",
    "paused": "waits",
    "undoing": "works",
}
_BLOCKED = ("blocked", "maybe_blocked")


def explanation_of(facts: Facts) -> Explanation:
    """Return why the run stands, or what it does."""
    view = facts.view
    reasons = [_end(facts)] if view.is_terminal else _of_live(facts)
    reasons.extend(_letter(facts))
    reasons.extend(_choices(view))
    state, told = decided(reasons)
    return Explanation(
        run=view.id,
        workflow=view.workflow,
        status=view.status,
        state=state,
        at_ms=facts.now_ms,
        reasons=told,
    )


def _of_live(facts: Facts) -> list[Reason]:
    of_notes = (_of_note(note, facts) for note in facts.view.notes)
    of_steps = (step_reason(step, facts) for step in facts.view.steps)
    found = (*_storage(facts), *_behind(facts), *_ring(facts), *of_notes, *of_steps)
    reasons = [reason for reason in found if reason is not None]
    if not any(reason.level != "note" for reason in reasons):
        text = "it is between two steps"
        reasons.append(Reason(kind="moving", level="works", text=text))
    return reasons


# ---------------------------------------------------------------- notes


def _of_note(note: Note, facts: Facts) -> Reason | None:
    match note.kind:
        case "engine_down":
            return _engine_down(note, facts)
        case "requested":
            return _requested(note, facts)
        case "scheduled":
            return _scheduled(note, facts)
        case "lane_queued":
            return _queued(note, facts)
        case "lane_next":
            return _first(note, facts)
        case "child_wait":
            return _child(note, facts)
        case _:
            pass
    found = facts.steps.get(note.step)
    taken = found.taken if found is not None else None
    if note.kind == "unserved" and taken is not None:
        return None
    if note.kind == "maybe_blocked" and taken is not None and not taken.worker.blocked_ms:
        return None
    step = facts.view.step(note.step) if note.step else None
    since_ms = step.since_ms if step and note.kind not in ("worker_lost", *_BLOCKED) else 0
    when = f" ({since(since_ms, facts.now_ms)})" if since_ms else ""
    is_bounded = step is not None and step.on_timeout != ""
    is_timed = is_bounded or note.kind in ("timed_wait", "provider_busy")
    if step and is_timed and facts.now_ms - step.due_ms > OVERDUE_MS:
        return Reason(
            kind="overdue",
            level="problem",
            text=f"{note.text}, which was {age(facts.now_ms - step.due_ms)} ago",
            command=note.command,  # Somebody may do what the timer has not done.
            step=step.id,
            since_ms=step.due_ms,
        )
    text = note.text
    if step and note.kind == "unserved":
        text += silent_text(facts, step.type)
    if step and is_bounded:
        when = f" ({since(since_ms, facts.now_ms)}; {age(step.due_ms - facts.now_ms)} left)"
    if step and note.kind in _BLOCKED:
        since_ms = facts.now_ms - max((w.blocked_ms for w in serving(step, facts)), default=0)
    return Reason(
        kind=note.kind,
        # What ends by itself, however it does, waits for nobody; but who is asked has to answer.
        level="pause" if is_bounded and note.kind != "ask" else _level(note.kind, facts.view),
        text=f"{text}{when}",
        command=note.command,
        step=note.step,
        since_ms=since_ms,
        until_ms=step.due_ms if step and is_timed else 0,
    )


def _level(kind: NoteKind, view: RunView) -> Level:
    # What is paused undoes nothing more either, until somebody resumes it.
    return "note" if kind == "undoing" and view.pause is not None else _LEVELS[kind]


def _engine_down(note: Note, facts: Facts) -> Reason:
    engine = facts.engine
    text = f"{note.text}{silent_text(facts)}"
    if engine.handled_ms:
        when = f"{date(engine.handled_ms)}, {age(facts.now_ms - engine.handled_ms)} ago"
        text = f"{text}; one handled its last event at {when}"
    if engine.pending:
        text = f"{text}; {_waiting(engine, facts.now_ms)}"
    return Reason(
        kind="engine_down",
        level="problem",
        text=text,
        command=note.command,
        since_ms=engine.handled_ms or engine.oldest_ms,
    )


def _requested(note: Note, facts: Facts) -> Reason:
    requested_ms = facts.view.requested_ms
    return Reason(
        kind="requested",
        level="works",  # What is wrong with the engines is a reason of its own.
        text=f"{note.text} ({since(requested_ms, facts.now_ms)})",
        since_ms=requested_ms,
    )


def _scheduled(note: Note, facts: Facts) -> Reason:
    starts_ms, now_ms = facts.view.starts_ms, facts.now_ms
    if now_ms - starts_ms > OVERDUE_MS:
        text = f"it was to begin at {date(starts_ms)}, {age(now_ms - starts_ms)} ago, and has not"
        return Reason(
            kind="overdue", level="problem", text=text, command="treadle doctor", since_ms=starts_ms
        )
    return Reason(
        kind="scheduled",
        level="pause",
        text=f"{note.text} (in {age(max(0, starts_ms - now_ms))})",
        command=note.command,
        until_ms=starts_ms,
    )


def _queued(note: Note, facts: Facts) -> Reason | None:
    ahead = facts.view.ahead
    if ahead is None or _is_in_ring(facts):
        return None
    text, holders = note.text, facts.holders
    if len(ahead.holders) == 1 and (only := holders.get(ahead.holder)) and only.since_ms:
        text = f"{text} ({since(only.since_ms, facts.now_ms)})"
    # It begins as soon as enough of them have ended, whichever.
    is_stuck = facts.holders_stuck >= ahead.places
    asked = [each.explanation for each in holders.values()]
    told = next((each for each in asked if each.is_stuck == is_stuck), None)
    if is_stuck and ahead.places > 1:
        text = f"{text}, of which {facts.holders_stuck} are stuck"
    if told is not None:
        text = f"{text}: {clause(told)}"
    return Reason(
        kind="lane_queued",
        level="waits" if is_stuck else "pause",
        text=text,
        command=(told.main.command if told is not None and is_stuck else "") or note.command,
        since_ms=facts.view.requested_ms,
    )


def _is_in_ring(facts: Facts) -> bool:
    return facts.ring is not None and facts.view.id in facts.ring.runs


def _ring(facts: Facts) -> list[Reason]:
    if facts.ring is None or not _is_in_ring(facts):
        return []
    return [ring_reason(facts.ring, facts.view.id)]


def _child(note: Note, facts: Facts) -> Reason | None:
    """Say what the run is doing that a step waits for: what stops it stops this one."""
    step = facts.view.step(note.step)
    if facts.ring is not None and _is_in_ring(facts) and step.child in facts.ring.runs:
        return None
    child = facts.children.get(step.child)
    told = f": {clause(child)}" if child else ""
    return Reason(
        kind="child_wait",
        level=child.main.level if child and child.state != "ended" else "works",
        text=f"{note.text} ({since(step.since_ms, facts.now_ms)}){told}",
        command=(child.main.command if child and child.is_stuck else "") or note.command,
        step=step.id,
        since_ms=step.since_ms,
    )


def _first(note: Note, facts: Facts) -> Reason:
    requested_ms = facts.view.requested_ms
    return Reason(
        kind="lane_next",
        level="works",
        text=f"{note.text} (queued {since(requested_ms, facts.now_ms)})",
        since_ms=requested_ms,
    )


# ---------------------------------------------------------------- server, engines, the end


def _storage(facts: Facts) -> list[Reason]:
    return [_fault(fault, facts.now_ms) for fault in facts.storage]


def _fault(fault: StorageFault, now_ms: int) -> Reason:
    text = f"the server takes no more writes: {fault.text}"
    if fault.stored_ms:
        when = f"{date(fault.stored_ms)}, {age(now_ms - fault.stored_ms)} ago"
        text = f"{text}; the last message before it was stored at {when}"
    return Reason(
        kind="storage",
        level="problem",
        text=text,
        command=fault.remedy,
        since_ms=fault.stored_ms,
    )


def _behind(facts: Facts) -> list[Reason]:
    engine = facts.engine
    if not any(process.role == "engine" for process in facts.presence) or not engine.oldest_ms:
        return []
    waits = _waiting(engine, facts.now_ms, " in this run's partition")
    if engine.halt is not None:
        text = f"an engine runs and is given no events: {halt_text(engine.halt, facts.now_ms)}; "
        text, command = f"{text}{waits}", engine.halt.command
    elif engine.behind_ms and facts.now_ms - engine.behind_ms >= BEHIND_MS:
        text, command = f"an engine runs and is behind: {waits}", "treadle doctor"
    else:
        return []
    return [
        Reason(
            kind="engine_behind",
            level="problem",
            text=text,
            command=command,
            since_ms=engine.behind_ms or engine.oldest_ms,
        )
    ]


def _letter(facts: Facts) -> list[Reason]:
    if facts.letter is None:
        return []
    letter = facts.letter.letter
    why = f": {clause(letter.failure)}" if letter.failure else ""
    text = f"a dead letter of the run is stored, {letter.reason}{why}, at {date(letter.at_ms)}"
    command = f"treadle dead show {facts.letter.number}"
    return [
        Reason(kind="dead_letter", level="note", text=text, command=command, since_ms=letter.at_ms)
    ]


def _choices(view: RunView) -> list[Reason]:
    """Return which branches were taken, and why: what follows from them is easily missed."""
    return [
        Reason(
            kind="choice",
            level="note",
            text=f"choice {step.id!r} {step.why}",
            step=step.id,
            since_ms=step.started_ms,
        )
        for step in view.steps
        if step.branch
    ]


def _end(facts: Facts) -> Reason:
    view = facts.view
    took = age(view.ended_ms - view.requested_ms)
    when = f"{date(view.ended_ms)}, {age(facts.now_ms - view.ended_ms)} ago, after {took}"
    match view.status:
        case "completed":
            text, command = f"it completed at {when}", f"treadle run result {view.id}"
        case "cancelled":
            reason = view.failure.message if view.failure else ""
            text = f"it was cancelled at {when}{f': {reason}' if reason else ''}"
            command = f"treadle run history {view.id}"
        case _:
            text = f"it failed at {when}: {_failed_at(view)}{view.failure or 'no cause is known'}"
            text = f"{sentence(text)} {facts.hint}" if facts.hint else text
            command = f"treadle run history {view.id}"
    kind = view.status if view.status in ("completed", "cancelled") else "failed"
    return Reason(kind=kind, level="ended", text=text, command=command, since_ms=view.ended_ms)


def _failed_at(view: RunView) -> str:
    if not view.failed_step:
        return ""
    step = next((each for each in view.steps if each.id == view.failed_step), None)
    at = ""
    if step is not None and step.kind == "agent_loop":
        is_between = view.failure is not None and view.failure.type in BETWEEN_ITERATIONS
        at = "" if is_between else f", iteration {step.iterations}"
    return f"step {view.failed_step!r}{at}: "


def _waiting(engine: EngineFacts, now_ms: int, where: str = "") -> str:
    count = engine.pending
    waits = f"{'one event waits' if count == 1 else f'{count} events wait'}{where}"
    if not engine.oldest_ms:
        return waits
    return f"{waits}, {'' if count == 1 else 'the oldest '}{since(engine.oldest_ms, now_ms)}"
