"""What a start does that finds another run of its singleton: it ends, or the other one does.

    RunRequested(skip), an earlier one is not over ──> cancelled, naming the one in its way
    queued(cancel_older) ──RunSuperseded to each one before──> they end, undoing what they have done
                         ──LaneGranted, when they have ended──> running

Both are decided on documents, by the order of the lane, and both may be asked twice.
"""

from __future__ import annotations

from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.core.progress import stop
from treadle.engine.core.undoing import end
from treadle.sdk.messages import Failure, RunSuperseded
from treadle.sdk.run import SINGLETON, RunDocument


def skipped(run: RunDocument, behind: str, moment: Moment) -> RunDocument:
    """Return the document of a start that ends because another run is in its way."""
    text = f"run {behind!r} of {run.lane!r} was not over, and this start is skipped then"
    failure = Failure(SINGLETON, text, retryable=False)
    return end(run, "cancelled", moment, failure=failure)


def superseded(plan: Plan, run: RunDocument, event: RunSuperseded, moment: Moment) -> RunDocument:
    """Cancel a run because a later start takes its place; one that undoes already goes on."""
    if event.request != run.place or run.undoing:
        return run
    text = f"run {event.by!r} was started in {run.lane!r} after it, and takes its place"
    failure = Failure(SINGLETON, text, retryable=False)
    return stop(plan, run, "cancelled", moment, failure=failure)
