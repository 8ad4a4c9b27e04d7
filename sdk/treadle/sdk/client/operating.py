"""What operators do to runs: cancel, pause, resume, try again, fork. See ``docs/operations.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Unpack, cast

from msgspec import UNSET

from treadle.sdk.client import fork_wanted, forking, requests
from treadle.sdk.client.bulk import Bulk
from treadle.sdk.client.dead_letters import DeadLetters
from treadle.sdk.client.fork_wanted import Version, Wanted
from treadle.sdk.client.handle import RunHandle
from treadle.sdk.client.raising import Raised, resume_request
from treadle.sdk.client.store import Store
from treadle.sdk.ids import check_id
from treadle.sdk.tracing import calling
from treadle.sdk.tracing.calling import TraceMode

if TYPE_CHECKING:
    from treadle.sdk.client.client import Client


class Operations:
    """The part of a client that acts on runs which are there."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.bulk = Bulk(store)
        """What is done to all runs that match: see ``docs/operations.md``."""
        self.dead_letters = DeadLetters(store)
        """What failed or could not be read: see ``docs/dead-letters.md``."""

    def handle(self, run: str) -> RunHandle:
        """Return a handle of a run that was started elsewhere; nothing is looked up."""
        return RunHandle(cast("Client", self), check_id("run id", run))

    async def cancel(self, run: str, reason: str = "", *, now: bool = False) -> bool:
        """Cancel a run, which undoes what it has to: final once ``result`` or ``watch`` say so.

        ``now`` undoes nothing, or nothing more. False if there was nothing to ask for: the run is
        cancelled already, or undoes what it has done. Raises ``RunConflict`` if it has ended
        otherwise.
        """
        return await requests.cancel(self._store, run, reason, now=now)

    async def pause(self, run: str, reason: str = "") -> bool:
        """Start nothing more of a run until it is resumed: see ``docs/operations.md``.

        What is under way finishes. False if it is paused already, and stays as it is. Raises
        ``RunConflict`` if it has ended.
        """
        return await requests.pause(self._store, run, reason)

    async def resume(self, run: str, step: str | None = None, **raised: Unpack[Raised]) -> None:
        """End a pause, and move parked steps on with raised bounds: ``max_*`` raise to, ``add_*``
        raise by.

        A step that waits goes on too. Raises ``RunConflict`` when the run is not paused and nothing
        is parked, or when a bound would stop it at once.
        """
        await requests.resume(self._store, run, resume_request(step, raised))

    async def retry(
        self,
        run: str,
        *,
        id: str | None = None,
        version: Version = "same",
        trace: TraceMode | None = None,
    ) -> RunHandle:
        """Make a new run that goes on where one has failed, or was cancelled; see
        ``docs/retry-and-fork.md``.

        What has completed is taken over and not executed again. ``version`` is ``same``, or
        ``latest`` for the newest of the workflow. Without an ``id`` it is always the same one,
        ``<run>-r1``, so a repeated call gives that run. Raises ``RunConflict`` if the run has not
        ended so, or if retention has taken what is needed.
        """
        return await self._fork(run, fork_wanted.retried(id, version), trace)

    async def fork(
        self,
        run: str,
        *,
        from_step: str | None = None,
        iteration: int | None = None,
        input: object = UNSET,
        id: str | None = None,
        version: Version = "same",
        trace: TraceMode | None = None,
    ) -> RunHandle:
        """Make a new run that starts again from a step of another one, or from its beginning.

        What does not depend on the step is taken over. ``iteration`` is where a loop begins, with
        what it had then. ``input`` is another one for the step, or without a step for the run.
        Raises ``RunConflict`` if what it needs is gone, or cannot be known.
        """
        wanted = fork_wanted.asked(from_step, iteration, input, id, version)
        return await self._fork(run, wanted, trace)

    async def repeated_steps(
        self, run: str, *, from_step: str | None = None, version: Version = "same"
    ) -> tuple[str, ...]:
        """Return the completed steps that a fork from a step, or a retry, executes again only
        because their effects were undone, or follow from some that were.

        Whoever does not want that, because a payment would be made twice, asks before.
        """
        wanted = fork_wanted.asked(from_step, None, UNSET, None, version)
        wanted = wanted if from_step is not None else fork_wanted.retried(None, version)
        return await forking.repeated(self._store, run, wanted)

    async def _fork(self, run: str, wanted: Wanted, trace: TraceMode | None) -> RunHandle:
        origin = calling.origin(trace)
        made = await forking.fork(self._store, run, wanted, origin)
        calling.link_to_run(origin)
        return self.handle(made.run)
