"""Many starts in one call: ``client.start_many``. See ``docs/operations.md``.

    what is given, one after the other ──> a start, some at once ──> an outcome each

Nothing is held but what is under way, and nothing is stored of the call: a start that has an id is
one run however often it is asked for, so whoever is interrupted calls again.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterable, AsyncIterator, Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

import msgspec

from treadle.sdk import payload
from treadle.sdk.beginning import AT_ONCE as BEGIN_AT_ONCE
from treadle.sdk.beginning import When
from treadle.sdk.builder import Workflow
from treadle.sdk.client import requests
from treadle.sdk.client.bulk import AT_ONCE, FAILURES_MAX, check_at_once
from treadle.sdk.client.giving import input_of
from treadle.sdk.client.store import Store
from treadle.sdk.definition import VersionPolicy, WorkflowDefinition
from treadle.sdk.errors import InvalidId, InvalidPayload, RunConflict, UnknownWorkflow, UserError
from treadle.sdk.flow import check_priority
from treadle.sdk.ids import check_id
from treadle.sdk.metadata import Given
from treadle.sdk.scheduling import when
from treadle.sdk.singletons import placed
from treadle.sdk.tracing import calling
from treadle.sdk.versions import checked_policy

if TYPE_CHECKING:
    from treadle.sdk.client.client import Client

StartResult = Literal["started", "there", "refused"]


class Start(msgspec.Struct, frozen=True):
    """One start of many."""

    input: Any = None
    id: str | None = None
    """Id of the run; None is the one that the call gives it."""
    metadata: Mapping[str, Given] = {}
    """Beside that of the call."""


class StartOutcome(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What became of one start."""

    number: int
    """Its place in what was given, from 1."""
    result: StartResult
    """``started``; ``there`` if the run was there before; ``refused``."""
    run: str = ""
    error: str = ""


class StartReport(msgspec.Struct, frozen=True, kw_only=True):
    """What became of all of them."""

    counts: dict[str, int]
    """By result: how many starts."""
    failures: tuple[StartOutcome, ...] = ()
    """The first of those that were refused."""

    @property
    def is_complete(self) -> bool:
        """True if nothing was refused."""
        return not self.counts.get("refused")


class ManyStarts:
    """The part of a client that starts many runs."""

    _store: Store

    async def start_many(
        self,
        workflow: str | Workflow[Any] | WorkflowDefinition,
        starts: Iterable[object] | AsyncIterable[object],
        *,
        id: str = "",
        metadata: Mapping[str, Given] | None = None,
        lane: str | None = None,
        priority: int = 0,
        start_at: datetime | str | None = None,
        start_after: timedelta | float | None = None,
        version_policy: VersionPolicy | None = None,
        at_once: int = AT_ONCE,
        each: Callable[[StartOutcome], None] | None = None,
    ) -> StartReport:
        """Start a run for each of many inputs; a workflow given as an object is registered first.

        ``starts`` are inputs, or ``Start`` for one with an id or metadata of its own. They are
        taken as they are needed, so there may be any number. With ``id`` the n-th one has the run
        id ``<id>-<n>``, from 1, unless it has its own: the same call again, in the same order,
        starts nothing twice. Without ids it starts all of them again.

        ``at_once`` are under way together, so the runs are not requested in order. ``each`` is
        told every outcome as it comes. A start whose input, id or metadata is refused, or whose
        run is there with another input, does not stop the others; ``ServerError`` does. The rest
        is as in ``Client.start``.
        """
        check_at_once(at_once)
        if id:
            check_id("run id", f"{id}-1")
        target = await _target(cast("Client", self), self._store, workflow)
        begins = when(start_at, start_after)
        asked = _Asked(
            id,
            metadata or {},
            lane,
            check_priority(priority),
            begins,
            checked_policy(version_policy),
        )
        counts: Counter[str] = Counter()
        failures: list[StartOutcome] = []

        def note(outcome: StartOutcome) -> None:
            counts[outcome.result] += 1
            if outcome.error and len(failures) < FAILURES_MAX:
                failures.append(outcome)
            if each is not None:
                each(outcome)

        running: set[asyncio.Task[StartOutcome]] = set()
        number = 0
        try:
            async for start in _one_by_one(starts):
                number += 1
                one = _outcome(self._store, target, asked, number, start)
                running.add(asyncio.create_task(one))
                running = await _settled(running, at_once - 1, note)
            await _settled(running, 0, note)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
        return StartReport(counts=dict(counts), failures=tuple(failures))


# ---------------------------------------------------------------- leaves


class _Target(NamedTuple):
    """The workflow of the runs, in one version for all of them."""

    name: str
    version: str
    definition: WorkflowDefinition | None
    workflow: Workflow[Any] | WorkflowDefinition | None

    def encoded(self, value: object) -> bytes:
        """Return an input as JSON; raise ``InvalidPayload`` if the workflow does not take it."""
        if self.workflow is not None and self.definition is not None:
            return input_of(self.workflow, self.definition, value)
        raw = payload.encode(f"input of workflow {self.name!r}", value)
        requests.check_input(self.definition, raw)
        return raw


class _Asked(NamedTuple):
    """What is asked of all runs."""

    id: str
    metadata: Mapping[str, Given]
    lane: str | None
    priority: int
    begins: When = BEGIN_AT_ONCE
    version_policy: VersionPolicy | None = None


async def _target(
    client: Client, store: Store, workflow: str | Workflow[Any] | WorkflowDefinition
) -> _Target:
    if not isinstance(workflow, str):
        definition = workflow.build() if isinstance(workflow, Workflow) else workflow
        version = await client.register(definition)
        return _Target(definition.name, version, definition, workflow)
    newest = await store.latest(check_id("workflow name", workflow))
    if newest is None:
        raise UnknownWorkflow(workflow, list(await store.workflow_hashes()))
    return _Target(workflow, newest, await store.definition(workflow, newest), None)


async def _one_by_one(starts: Iterable[object] | AsyncIterable[object]) -> AsyncIterator[object]:
    if isinstance(starts, AsyncIterable):
        async for start in starts:
            yield start
    else:
        for start in starts:
            yield start


async def _settled(
    running: set[asyncio.Task[StartOutcome]], most: int, note: Callable[[StartOutcome], None]
) -> set[asyncio.Task[StartOutcome]]:
    """Wait until at most so many are under way; return these. Raise what one of them raised."""
    while len(running) > most:
        done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in sorted(done, key=lambda task: task.exception() is not None):
            note(task.result())
    return running


async def _outcome(
    store: Store, target: _Target, asked: _Asked, number: int, given: object
) -> StartOutcome:
    start = given if isinstance(given, Start) else Start(given)
    run = f"{asked.id}-{number}" if start.id is None and asked.id else start.id
    if isinstance(given, UserError):  # It could not be read.
        return StartOutcome(number=number, result="refused", error=str(given))
    try:
        raw = target.encoded(start.input)
        place = placed(target.definition, raw, asked.lane, None)._replace(
            priority=asked.priority,
            when=asked.begins,
            version_policy=asked.version_policy or "",
        )
        labels = {**asked.metadata, **start.metadata}
        origin = calling.origin(None)
        begun = await requests.begin(
            store, target.name, target.version, raw, run, labels, place, origin
        )
    except (InvalidPayload, InvalidId, RunConflict) as exc:
        return StartOutcome(number=number, result="refused", run=run or "", error=str(exc))
    result: StartResult = "started" if begun.is_new else "there"
    return StartOutcome(number=number, result=result, run=begun.run)
