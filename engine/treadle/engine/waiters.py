"""Steps, and runs, that wait for published events, and the events that find them.

    a step begins to wait ──> its key is stored ──> what was published before is looked at
    an event is published ──> it is stored ───────> the keys of its name are looked at

Each stores first and looks then, so of a step and an event one sees the other. Both may: the run
takes the first event that fits, and a second telling of it changes nothing. The key goes when the
step is over. An engine that stores it late, when the step is over already, looks at the run's
document afterwards, and drops it again.
"""

from __future__ import annotations

import logging
from collections import OrderedDict

import msgspec

from treadle.engine.core.plan import Plan
from treadle.engine.core.waits import is_waiting, used_before
from treadle.engine.documents import Documents
from treadle.engine.inputs import Inputs
from treadle.engine.planned import RunPlans
from treadle.engine.recurring import sweep_every
from treadle.engine.waiter_log import SKEW_MS, Found, WaiterLog
from treadle.sdk import conditions, failpoints, matching
from treadle.sdk.cancel_on import is_cancel_id
from treadle.sdk.definition import EventStep
from treadle.sdk.matching import MISSING, Path
from treadle.sdk.messages import EventMatched, Failure
from treadle.sdk.run import RunDocument
from treadle.sdk.waiters import Given, Waiter

GIVEN_BYTES_MAX = 16 * 1024
"""Of what a match asks for besides the event, to be kept with the waiter: each event of the name
may read it. More than that is read where it is stored, if an event may fit."""
SETTLED_MAX = 100_000
"""Waits that an engine knows to be looked after; of the others it looks once more."""


SWEEP_S = 600.0
SWEPT_MAX = 500
"""Waiters that one sweep looks at; the next one goes on behind them."""

_log = logging.getLogger("treadle.engine")


class Published(msgspec.Struct, frozen=True):
    """A published event."""

    name: str
    id: str
    sequence: int
    time_ms: int
    payload: bytes
    value: object


class Waiters:
    """The steps of a namespace that wait for published events."""

    def __init__(
        self, log: WaiterLog, documents: Documents, plans: RunPlans, inputs: Inputs
    ) -> None:
        self._log = log
        self._documents = documents
        self._plans = plans
        self._inputs = inputs
        self._swept = 0
        self._keys: OrderedDict[tuple[str, int, str], str] = OrderedDict()
        self._settled: OrderedDict[tuple[str, int, str, bool], None] = OrderedDict()

    # ---------------------------------------------------------------- effects of a run

    async def wait(self, plan: Plan, run: RunDocument, step_id: str) -> None:
        """Make an active step one that events find, and give it what was published before."""
        done = (run.run, run.requested, step_id, True)
        if done in self._settled:
            return
        step = plan.awaited(step_id)
        names = matching.names_in(step.match)
        run_input, steps = await self._inputs.named(plan, run, step, names)
        waiter = _waiter(run, step, _given(names, run_input, steps))
        try:
            path, value = _indexed(step.match, run_input, steps)
        except conditions.ConditionError as exc:
            if is_cancel_id(step_id):
                self._settle(done)
                return  # No event can fit, and the run needs none.
            failure = Failure("condition", str(exc), retryable=False)
            await self._log.tell(
                waiter, EventMatched(step=step_id, request=run.requested, failure=failure)
            )
            self._settle(done)
            return
        key = await self._log.put(waiter, path, value)
        failpoints.reach("engine.waiter-stored")
        async for stored in self._log.published_since(step.event, waiter.since_ms):
            published = read_published(
                step.event, stored.subject, stored.sequence, stored.time_ms, stored.data
            )
            if published is None or published.sequence in waiter.used:
                continue
            if matching.fits(step.match, published.value, run_input, steps):
                await self._log.tell(waiter, _matched(waiter, published))
                failpoints.reach("engine.earlier-event-told")
                break
        failpoints.reach("engine.waiter-looked-back")
        version = await self._documents.read(run.run)
        if version is None or not is_waiting(version.run, step_id):
            await self._log.drop(key)
        self._keys[waiter.run, waiter.request, waiter.step] = key
        if len(self._keys) > SETTLED_MAX:
            self._keys.popitem(last=False)
        self._settle(done)

    async def forget(self, plan: Plan, run: RunDocument, step_id: str) -> None:
        """Make a step that is over one that no event finds."""
        done = (run.run, run.requested, step_id, False)
        if done in self._settled:
            return
        step = plan.awaited(step_id)
        key = self._keys.pop((run.run, run.requested, step_id), "")
        if key:
            await self._log.drop(key)
        else:
            await self._log.forget(step.event, run.run, step_id)
        failpoints.reach("engine.waiter-forgotten")
        self._settle(done)

    # ---------------------------------------------------------------- a published event

    async def meet(self, published: Published) -> int:
        """Tell every step that waits for an event; return how many there were."""
        told = 0
        for path in await self._log.paths(published.name):
            value = matching.at(published.value, path)
            if value is MISSING:
                continue
            key = matching.value_key(value)
            async for found in self._log.by_value(published.name, path, key):
                told += await self._met(found, published)
        async for found in self._log.of_any(published.name):
            told += await self._met(found, published)
        return told

    async def _met(self, found: Found, published: Published) -> bool:
        waiter = found.waiter
        if published.time_ms < waiter.since_ms - SKEW_MS or published.sequence in waiter.used:
            return False
        if not await self._fits(waiter, published):
            return False
        await self._log.tell(waiter, _matched(waiter, published))
        failpoints.reach("engine.event-told")
        # Its step is as good as over: the run has an event that ends it.
        await self._log.drop(found.subject, up_to=found.revision + 1)
        return True

    async def _fits(self, waiter: Waiter, published: Published) -> bool:
        if not waiter.is_referred:
            given = waiter.given or Given()
            run_input = msgspec.json.decode(given.input)
            steps = {name: msgspec.json.decode(raw) for name, raw in given.steps.items()}
            return matching.fits(waiter.match, published.value, run_input, steps)
        version = await self._documents.get(waiter.run)
        if version is None or version.run.requested != waiter.request:
            return False
        run = version.run
        plan = await self._plans.of_run(run)
        if plan is None or not (waiter.step in plan.steps or waiter.step in plan.cancels):
            return False
        step = plan.awaited(waiter.step)
        names = matching.names_in(waiter.match)
        run_input, steps = await self._inputs.named(plan, run, step, names)
        return matching.fits(waiter.match, published.value, run_input, steps)

    # ---------------------------------------------------------------- what only time can tell

    async def run(self) -> None:
        """Sweep a few times an hour, until cancelled."""
        await sweep_every(SWEEP_S, self.sweep, "engine.waiter-sweep-failed %r")

    async def sweep(self) -> int:
        """Drop what is kept of steps that do not wait any more; return how many there were.

        An engine that was killed as it stored a waiter late may have left one.
        """
        count = dropped = 0
        start, self._swept = self._swept + 1, 0
        async for waiter, key, revision in self._log.all(start):
            version = await self._documents.read(waiter.run)
            run = version.run if version is not None else None
            is_its = run is not None and run.requested == waiter.request
            if run is None or not is_its or not is_waiting(run, waiter.step):
                await self._log.drop(key, up_to=revision + 1)
                dropped += 1
            count += 1
            if count == SWEPT_MAX:
                self._swept = revision
                break
        return dropped

    def _settle(self, done: tuple[str, int, str, bool]) -> None:
        self._settled[done] = None
        if len(self._settled) > SETTLED_MAX:
            self._settled.popitem(last=False)


def read_published(
    name: str, subject: str, sequence: int, time_ms: int, data: bytes
) -> Published | None:
    """Return a published event; None if what was published is not JSON."""
    try:
        value: object = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        return None
    return Published(name, subject.rpartition(".")[2], sequence, time_ms, data, value)


def _waiter(run: RunDocument, step: EventStep, given: tuple[Given | None, bool]) -> Waiter:
    return Waiter(
        run=run.run,
        step=step.id,
        domain=run.domain,
        event=step.event,
        match=step.match,
        request=run.requested,
        since_ms=run.events_since_ms,
        used=used_before(run, step.id),
        given=given[0],
        is_referred=given[1],
    )


def _given(
    names: frozenset[str], run_input: object, steps: dict[str, object]
) -> tuple[Given | None, bool]:
    """Return what the match asks for, if it is short; else that it has to be read."""
    if not names & {"input", "steps"}:
        return None, False
    given = Given(
        msgspec.Raw(msgspec.json.encode(run_input)),
        {name: msgspec.Raw(msgspec.json.encode(value)) for name, value in steps.items()},
    )
    is_short = len(msgspec.json.encode(given)) <= GIVEN_BYTES_MAX
    return (given, False) if is_short else (None, True)


def _indexed(match: str, run_input: object, steps: dict[str, object]) -> tuple[Path, str]:
    """Return the path and the value by which a waiter is found; no path if it is asked each time.

    Raise ``ConditionError`` if the match is one equality, whose other side is not there.
    """
    equality = matching.equality(match)
    if equality is None:
        return (), ""
    try:
        value = conditions.value_of(equality.other, run_input, steps)
        return equality.path, matching.value_key(value)
    except conditions.ConditionError:
        if equality.is_all:
            raise
        return (), ""  # What guards it may stand before it.
    except (TypeError, ValueError):
        return (), ""  # A value that JSON has not, such as a slice.


def _matched(waiter: Waiter, published: Published) -> EventMatched:
    return EventMatched(
        step=waiter.step,
        request=waiter.request,
        name=published.name,
        id=published.id,
        published=published.sequence,
        payload=msgspec.Raw(published.payload),
    )
