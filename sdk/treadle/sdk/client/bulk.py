"""One action on all runs that match: ``client.bulk``. See ``docs/operations.md``.

    list, newest first ── a page ──> the action on each of it, some at once ──> an outcome each
                       <── next ──

Nothing of it is stored: what an action has done is in its runs. So whoever is interrupted calls
again, and the runs that are done either match no more or are left as they are.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Literal, Unpack

import msgspec
from msgspec.structs import replace

from treadle.sdk.client import forking, requests
from treadle.sdk.client.fork_wanted import Version, retried
from treadle.sdk.client.lineage import Lineage, waits_for
from treadle.sdk.client.listing import list_runs
from treadle.sdk.client.raising import Raised, resume_request
from treadle.sdk.client.store import Store
from treadle.sdk.client.view import RunView, of_document
from treadle.sdk.errors import RunConflict, ServerError, TreadleError, UnknownWorkflow, UserError
from treadle.sdk.listing.filters import RunFilter, RunsWanted, filter_of, matches
from treadle.sdk.listing.wire import Position
from treadle.sdk.run import RunDocument
from treadle.sdk.tracing import calling

if TYPE_CHECKING:
    from treadle.sdk.messages import ResumeRequested

Action = Literal["cancel", "pause", "resume", "retry"]
Result = Literal["done", "unchanged", "covered", "refused", "failed", "would"]

AT_ONCE = 16
"""Runs that are acted on together: hides round trips, and leaves a server to its other clients."""
AT_ONCE_MAX = 256
FAILURES_MAX = 100
"""Outcomes with an error that a report keeps; all of them are counted."""
_PAGE = 256

STATUSES: dict[Action, tuple[str, ...]] = {
    "cancel": ("requested", "scheduled", "queued", "running", "paused", "parked"),
    "pause": ("requested", "scheduled", "queued", "running", "parked"),
    "resume": ("paused", "parked"),
    "retry": ("failed",),
}
"""Of which runs an action is asked if nobody says otherwise."""
_MORE: dict[Action, tuple[str, ...]] = {
    "cancel": ("unreadable",),
    "pause": ("paused",),
    "resume": ("requested", "running"),
    "retry": ("cancelled",),
}
"""Of which others it may be asked."""
LEFT: frozenset[Action] = frozenset({"cancel", "retry"})
"""Which actions leave runs to others: a parent that is cancelled cancels its children, and one that
is retried may start them again."""


class BulkOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one run."""

    run: str
    result: Result
    """``done``; ``unchanged`` if it was done before, or by the next attempt of the step that
    started the run; ``covered`` if the same of its parent does it; ``refused`` if the run is not in
    a state for it, as one that has ended meanwhile; ``failed``; ``would`` in a dry run."""
    made: str = ""
    """The run that a retry has made, now or before; the next attempt."""
    parent: str = ""
    """Of a covered run: the run that covers it. Of another one that is retried: a run which has
    failed too and does not match, and whose own retry would do the same once more."""
    repeated: tuple[str, ...] = ()
    """Of a retry: completed steps that it executes again because they were undone."""
    error: str = ""


class BulkReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all of them."""

    matched: int
    counts: dict[str, int]
    """By result: how many runs."""
    failures: tuple[BulkOutcome, ...] = ()
    """The first of those that were refused or failed."""

    @property
    def is_complete(self) -> bool:
        """True if nothing has failed; what was refused is no failure."""
        return not self.counts.get("failed")


class Over(RunsWanted, total=False):
    """Which runs, and how an action goes over them."""

    at_once: int
    """Runs that are acted on together, 16 by default."""
    dry_run: bool
    """Only say which runs they are."""
    each: Callable[[BulkOutcome], None]
    """Is told each outcome as it comes."""


class Bulk:
    """What is done to all runs that match: ``client.bulk``.

    Which runs, is said as in ``Client.list_runs``; without a status, those that the action is for.
    An error of one run does not stop the others; ``ServerError`` does, and the same call goes on.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def cancel(
        self, *, reason: str = "", now: bool = False, **wanted: Unpack[Over]
    ) -> BulkReport:
        """Cancel all runs that match and have not ended; those that undo already go on with it.

        With ``now`` nothing is undone, or nothing more.
        """

        async def act(view: RunView) -> BulkOutcome:
            is_asked = await requests.cancel(self._store, view.id, reason, now=now)
            return _done(view, was_there=not is_asked)

        return await act_on_all(self._store, "cancel", wanted, act)

    async def pause(self, *, reason: str = "", **wanted: Unpack[Over]) -> BulkReport:
        """Pause all runs that match."""

        async def act(view: RunView) -> BulkOutcome:
            await requests.pause(self._store, view.id, reason)
            return _done(view, was_there=view.pause is not None)

        return await act_on_all(self._store, "pause", wanted, act)

    async def resume(self, *, raised: Raised | None = None, **wanted: Unpack[Over]) -> BulkReport:
        """Resume all runs that match and are paused or parked; ``raised`` as in ``Client.resume``.

        To raise a bound *to* a number is the same however often it is asked; *by* one is not.
        """
        request: ResumeRequested = resume_request(None, raised or {})

        async def act(view: RunView) -> BulkOutcome:
            await requests.resume(self._store, view.id, request)
            return _done(view)

        return await act_on_all(self._store, "resume", wanted, act)

    async def retry(self, *, version: Version = "same", **wanted: Unpack[Over]) -> BulkReport:
        """Make a run of each one that matches and has failed; one that has its retry keeps it.

        A child is left to its parent if the parent's retry starts it again.
        """
        wanted_of_each = retried(None, version)

        async def act(view: RunView) -> BulkOutcome:
            origin = calling.origin(None)
            made = await forking.fork(self._store, view.id, wanted_of_each, origin)
            done = _done(view, was_there=not made.is_new, made=made.run)
            return replace(done, repeated=made.repeated)

        return await act_on_all(self._store, "retry", wanted, act, version)


def check_at_once(at_once: int) -> None:
    """Raise ``UserError`` for a number of runs that are not acted on together."""
    if not 1 <= at_once <= AT_ONCE_MAX:
        raise UserError(
            f"at_once is {at_once}, and 1 to {AT_ONCE_MAX} runs are acted on together. "
            "Choose a number between them."
        )


def selected(action: Action, wanted: RunsWanted) -> RunsWanted:
    """Return which runs an action is asked of; ``UserError`` for a status it is never for."""
    status = wanted.get("status")
    statuses = (status,) if isinstance(status, str) else tuple(status or STATUSES[action])
    allowed = (*STATUSES[action], *_MORE[action])
    for one in statuses:
        if one not in allowed:
            raise UserError(
                f"no run that is {one!r} can be asked to {action}. Choose of {', '.join(allowed)}."
            )
    return {**wanted, "status": statuses}


async def act_on_all(
    store: Store,
    action: Action,
    wanted: Over,
    act: Callable[[RunView], Awaitable[BulkOutcome]],
    version: Version = "same",
) -> BulkReport:
    """Act on each run that matches; see ``Bulk``."""
    at_once, each = wanted.get("at_once", AT_ONCE), wanted.get("each")
    check_at_once(at_once)
    chosen = filter_of(selected(action, wanted))
    gate = asyncio.Semaphore(at_once)
    counts: Counter[str] = Counter()
    failures: list[BulkOutcome] = []
    judge = _Judge(store, action, chosen, version)

    async def one(view: RunView) -> None:
        async with gate:
            outcome = await _outcome(view, judge, act, dry_run=wanted.get("dry_run", False))
        counts[outcome.result] += 1
        if outcome.error and len(failures) < FAILURES_MAX:
            failures.append(outcome)
        if each is not None:
            each(outcome)

    below: Position | None = None
    while True:
        page = await list_runs(store, chosen, _PAGE, below)
        acts = [asyncio.create_task(one(view)) for view in page.runs]
        try:
            await asyncio.gather(*acts)
        finally:
            for task in acts:
                task.cancel()
            await asyncio.gather(*acts, return_exceptions=True)
        if page.cursor is None:
            break
        last = page.runs[-1]
        below = Position(last.requested_ms, last.id)
    return BulkReport(matched=counts.total(), counts=dict(counts), failures=tuple(failures))


class _Judge:
    """Says which of the runs that match are not acted on themselves, and why."""

    def __init__(self, store: Store, action: Action, chosen: RunFilter, version: Version) -> None:
        self._action = action
        self._chosen = chosen
        self._lineage = Lineage(store, version)
        self._store = store
        self._version: Version = version

    async def left(self, view: RunView) -> BulkOutcome:
        """Return the outcome of a run that is left to others, else that it would be acted on."""
        if self._action == "cancel" and (parent := await self._cancelled_by(view)):
            return BulkOutcome(run=view.id, result="covered", parent=parent)
        if self._action == "retry":
            return await self._retried(view)
        return BulkOutcome(run=view.id, result="would")

    async def made(self, view: RunView) -> str:
        """Return the retry that a run has already."""
        return await self._lineage.made_of(view.id) if self._action == "retry" else ""

    async def would(self, outcome: BulkOutcome) -> BulkOutcome:
        """Return the outcome of a run that would be acted on, with what that does again."""
        if self._action != "retry":
            return outcome
        try:
            again = await forking.repeated(self._store, outcome.run, retried(None, self._version))
        except UnknownWorkflow:
            return outcome
        return replace(outcome, repeated=again)

    async def _cancelled_by(self, view: RunView) -> str:
        if view.parent is None or view.parent.detached:
            return ""
        parent = await self._lineage.document(view.parent.run)
        return parent.run if parent is not None and self._matches(parent) else ""

    async def _retried(self, view: RunView) -> BulkOutcome:
        heir = await self._lineage.heir(view.id, view.parent)
        match heir.standing:
            case "superseded":
                return BulkOutcome(run=view.id, result="unchanged", made=heir.run)
            case "retried":
                return BulkOutcome(run=view.id, result="covered", parent=heir.run)
            case "awaited":
                raise waits_for(view.id, heir)
            case "inherited":
                acted = next((run.run for run in heir.above if self._matches(run)), "")
                if acted:
                    return BulkOutcome(run=view.id, result="covered", parent=acted)
                return BulkOutcome(run=view.id, result="would", parent=heir.failed)
            case "alone":
                return BulkOutcome(run=view.id, result="would")

    def _matches(self, run: RunDocument) -> bool:
        return matches(self._chosen, of_document(run, None, {}, None))


async def _outcome(
    view: RunView,
    judge: _Judge,
    act: Callable[[RunView], Awaitable[BulkOutcome]],
    *,
    dry_run: bool,
) -> BulkOutcome:
    try:
        outcome = await judge.left(view)
        if outcome.result != "would":
            return outcome
        if made := await judge.made(view):
            return replace(outcome, result="unchanged", made=made, parent="")
        if dry_run:
            return await judge.would(outcome)
        return replace(await act(view), parent=outcome.parent)
    except RunConflict as exc:
        return BulkOutcome(run=view.id, result="refused", error=str(exc))
    except ServerError:
        raise
    except TreadleError as exc:
        return BulkOutcome(run=view.id, result="failed", error=str(exc))


def _done(view: RunView, *, was_there: bool = False, made: str = "") -> BulkOutcome:
    return BulkOutcome(run=view.id, result="unchanged" if was_there else "done", made=made)
