"""The end of a run that cannot go on: what it needs is damaged, or handling it always fails.

    document readable     it is ended as it stands
    document damaged      one is made from the run's request, ended, and stored over the damaged
                          revision by compare-and-set
    request gone too      nothing can be said of the run: the caller keeps its event

Like any other end it is a document first and effects after it, and the event that asked for it is
un-acked until both are true.
"""

from __future__ import annotations

import contextlib

import msgspec

from treadle.engine.core.apply import rebuilt
from treadle.engine.core.moment import Moment
from treadle.engine.core.plan import Plan
from treadle.engine.core.undoing import end
from treadle.engine.dead_letters import DeadLetters
from treadle.engine.definitions import Definitions
from treadle.engine.documents import Documents
from treadle.engine.driver import Driver
from treadle.engine.planned import RunPlans
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Event, Failure, RunRequested
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

TRIES_MAX = 8
"""More engines do not write one document at once; the event comes again."""

_event: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


class LastResort:
    """Ends runs of a namespace that cannot be moved."""

    def __init__(
        self,
        js: JetStream,
        subjects: Subjects,
        documents: Documents,
        definitions: Definitions,
        plans: RunPlans,
        driver: Driver,
        dead_letters: DeadLetters,
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._documents = documents
        self._definitions = definitions
        self._plans = plans
        self._driver = driver
        self._dead_letters = dead_letters

    async def end(
        self, moment: Moment, domain: str, failure: Failure, *, cancel_reason: str | None = None
    ) -> bool:
        """Fail the run, or cancel it if there is a reason for that; False if it is not known."""
        for _ in range(TRIES_MAX):
            run, revision = await self._found(moment.run, domain)
            if run is None:
                return False
            if run.is_terminal:
                return True
            ended = _ended(run, moment, failure, cancel_reason)
            if ended.status == "failed":
                await self._dead_letters.run_failed(ended)
            version = await self._documents.put(ended, revision)
            if version is not None:
                await self._driver.drive(await self._plan(ended), version.run)
                version.is_driven = True
                return True
        raise Unknown(f"the document of run {moment.run!r} was refused {TRIES_MAX} times")

    async def _found(self, run: str, domain: str) -> tuple[RunDocument | None, int]:
        """Return the run's document, or one made for its end, and the revision it replaces."""
        revision = 0
        try:
            version = await self._documents.read(run)
        except StoredUnreadable as exc:
            revision = exc.revision
        else:
            if version is not None:
                return version.run, version.revision
        requested = await self._request(run)
        if requested is None:
            return None, revision
        event, moment = requested
        bare = rebuilt(None, event, moment, domain)
        return rebuilt(await self._plan(bare), event, moment, domain), revision

    async def _request(self, run: str) -> tuple[RunRequested, Moment] | None:
        s = self._subjects
        async for stored in self._js.read(s.events_stream, s.events_of_run(run)):
            try:
                event = _event.decode(stored.data)
            except (ValueError, RecursionError):
                continue
            if isinstance(event, RunRequested):
                moment = Moment(run, f"e{stored.sequence}", stored.time_ms, stored.sequence)
                return event, moment
        return None

    async def _plan(self, run: RunDocument) -> Plan | None:
        """Return the run's plan, without what its planners have planned if that is damaged."""
        with contextlib.suppress(StoredUnreadable):
            return await self._plans.of_run(run)
        with contextlib.suppress(StoredUnreadable):
            return await self._definitions.plan(run.workflow, run.definition)
        return None


def _ended(
    run: RunDocument, moment: Moment, failure: Failure, cancel_reason: str | None
) -> RunDocument:
    if cancel_reason is None:
        return end(run, "failed", moment, failure=failure)
    cancelled = Failure("cancelled", cancel_reason, retryable=False)
    return end(run, "cancelled", moment, failure=cancelled)
