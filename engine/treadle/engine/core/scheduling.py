"""Runs that begin later: by a timer, and in a lane by entering it when it is time.

    RunRequested(start_at) ──> scheduled ──TimerFired(run_start)──> running
                                         ──TimerFired(run_start), with a lane──> queued, not placed
    queued, not placed ──LaneEntered──> queued | running | skipped

The request of a scheduled run is not one of its lane's, so nobody waits for it meanwhile. When it
is time, the run stores an event that is: its place is there, behind those that were requested
before. Stored twice, the first one that is handled is the place.
"""

from __future__ import annotations

import msgspec

from treadle.engine.core import singletons
from treadle.engine.core.facts import RunPlaced
from treadle.engine.core.moment import Moment
from treadle.sdk.limits import DURATION_S_MAX
from treadle.sdk.messages import RunRequested
from treadle.sdk.run import RunDocument

_MOST_MS = DURATION_S_MAX * 1000


def begins_ms(event: RunRequested, requested_ms: int) -> int:
    """Return when a run is to begin that was requested at that time; 0 is at once.

    Not later than a definition may ask for: what asks for more is mistaken.
    """
    if event.start_at_ms <= 0 and event.start_after_ms <= 0:
        return 0
    wanted_ms = event.start_at_ms if event.start_at_ms > 0 else requested_ms + event.start_after_ms
    return min(wanted_ms, requested_ms + _MOST_MS)


def scheduled(run: RunDocument, event: RunRequested, moment: Moment) -> RunDocument | None:
    """Return the first document of a run that does not begin by its request; None if it does."""
    due_ms = begins_ms(event, moment.ms)
    if not due_ms:
        return None
    run = msgspec.structs.replace(run, starts_ms=due_ms)
    if due_ms > moment.ms:
        return msgspec.structs.replace(run, status="scheduled")
    return due(run)


def due(run: RunDocument) -> RunDocument | None:
    """Return a run for which it is time and that has to enter its lane; None without a lane."""
    return msgspec.structs.replace(run, status="queued") if run.lane else None


def is_due(run: RunDocument, moment: Moment) -> bool:
    """True if it is time for a scheduled run to begin."""
    return run.status == "scheduled" and moment.ms >= run.starts_ms


def is_entering(run: RunDocument) -> bool:
    """True if the run has to enter its lane and has no place there yet."""
    return run.status == "queued" and run.starts_ms > 0 and not run.placed


def placed(run: RunDocument, event: RunPlaced, moment: Moment) -> RunDocument:
    """Return the run with its place in its lane; the same object if it has one.

    What follows for a singleton that finds another run is what follows at a request.
    """
    if not is_entering(run) or event.request != run.requested:
        return run
    run = msgspec.structs.replace(run, placed=moment.sequence)
    if event.is_queued and event.behind not in ("", run.run) and run.singleton == "skip":
        return singletons.skipped(run, event.behind, moment)
    return run
