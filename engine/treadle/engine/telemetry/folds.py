"""The folds of the runs that are under way; one that is not in memory is read from the log."""

from __future__ import annotations

from collections import OrderedDict

from treadle.engine.definitions import Definitions
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.client.event import decode_event
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import Event, RunRequested
from treadle.sdk.subjects import Subjects
from treadle.sdk.tracing.fold import RunFold
from treadle.sdk.tracing.ids import parse_ref

FOLDS_MAX = 20_000


class Folds:
    """Folds by run. None stands for a run that has no trace to write."""

    def __init__(
        self, js: JetStream, subjects: Subjects, definitions: Definitions, *, live: bool
    ) -> None:
        self._js = js
        self._subjects = subjects
        self._definitions = definitions
        self._live = live
        self._folds: OrderedDict[str, RunFold | None] = OrderedDict()

    async def get(self, run: str, *, before: int, event: Event | None = None) -> RunFold | None:
        """Return a run's fold as it stands before the event at that sequence.

        ``event`` is that event; one that requests the run spares the look at what was before.
        """
        if run in self._folds:
            self._folds.move_to_end(run)
            return self._folds[run]
        if isinstance(event, RunRequested):
            fold = await self._begun(run, event)
        else:
            fold = await self._read(run, before)
        self._folds[run] = fold
        if len(self._folds) > FOLDS_MAX:
            self._folds.popitem(last=False)
        return fold

    def clear(self) -> None:
        """Forget all: another projector may have gone on since."""
        self._folds.clear()

    async def _begun(self, run: str, request: RunRequested) -> RunFold | None:
        ref = parse_ref(request.trace)
        if ref is None or not ref.is_sampled:
            return None
        try:
            plan = await self._definitions.plan(request.workflow, request.definition)
        except StoredUnreadable:
            return None
        return None if plan is None else RunFold(run, plan.definition, live=self._live)

    async def _read(self, run: str, before: int) -> RunFold | None:
        fold: RunFold | None = None
        events = self._js.read(self._subjects.events_stream, self._subjects.events_of_run(run))
        async for stored in events:
            if stored.sequence >= before:
                break
            event = decode_event(stored.data)
            if event is None:
                continue
            if fold is None:
                if not isinstance(event, RunRequested):
                    continue
                fold = await self._begun(run, event)
                if fold is None:
                    return None
            fold.event(event, stored.time_us)
        return fold
