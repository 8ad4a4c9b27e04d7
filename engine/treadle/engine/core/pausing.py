"""A paused run: what would start is held, and goes on from there when the run is resumed.

    Task | Delayed | Sleeping | Parked(waits) ──what would dispatch it──> Parked(paused) ──> Task
    running | parked ──PauseRequested──> paused ──ResumeRequested──> running | parked

Only what would be given out is held here; that no step begins is in ``progress``. An execution
under way settles as ever, timers and signals are counted, a cancel and the run's deadline end the
run. Of a pause and a resume the one that was stored later counts, in whatever order engines hear of
them.

Whoever holds a register looks at the document after the write; whoever resumes a run stores the
document before it looks at the registers. One of the two sees the other's, and releases.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from treadle.engine.core.moment import Moment
from treadle.sdk.messages import Parked, PauseRequested, Register, Task
from treadle.sdk.run import Pause, RunDocument, RunStatus, sequence_of

PAUSED: Final = "paused"
"""Reason of a register that is held."""


def paused(run: RunDocument, event: PauseRequested, moment: Moment) -> RunDocument:
    """Return the run with this pause; the same object if a later event was counted."""
    known = run.pause or Pause()
    if moment.sequence <= max(sequence_of(known.event), sequence_of(known.resumed)):
        return run
    since = msgspec.structs.replace(known, event=moment.id, reason=event.reason, since_ms=moment.ms)
    status: RunStatus = PAUSED if run.status in ("running", "parked") else run.status
    return msgspec.structs.replace(run, pause=since, status=status)


def resumed(run: RunDocument, moment: Moment) -> RunDocument:
    """Return the run without the pauses up to here; the same object if that is known.

    The caller gives it the status that its steps ask for.
    """
    known = run.pause or Pause()
    if moment.sequence <= sequence_of(known.resumed):
        return run
    since = msgspec.structs.replace(known, resumed=moment.id, resumed_ms=moment.ms)
    return msgspec.structs.replace(run, pause=since)


def lifted(run: RunDocument, moment: Moment) -> RunDocument:
    """Return the run without its pause, if it has one."""
    return resumed(run, moment) if run.is_paused else run


def shown(run: RunDocument, status: Literal["running", "parked"]) -> RunStatus:
    """Return the status of a run whose steps give it this one."""
    return PAUSED if run.is_paused else status


def hold(register: Register, moment: Moment) -> Register:
    """Return what a paused run stores instead of a task that would be given out now."""
    if not isinstance(register, Task):
        return register
    return Parked(
        parent=register.parent, task=register, reason=PAUSED, parked_ms=moment.ms, paused=True
    )


def resume_of(run: RunDocument) -> Moment:
    """Return the moment of the resume that ended the newest pause."""
    pause = run.pause or Pause()
    event = pause.resumed or f"e{run.requested}"
    return Moment(run.run, event, pause.resumed_ms, sequence_of(event))


def release(parked: Parked, moment: Moment) -> Task:
    """Return the task of a step that was parked; the time it was does not count."""
    task, parked_for_ms = parked.task, max(0, moment.ms - parked.parked_ms)
    return msgspec.structs.replace(
        task,
        parent=moment.id,
        parked_ms=task.parked_ms + parked_for_ms,
        deadline_ms=task.deadline_ms + parked_for_ms if task.deadline_ms else 0,
    )
