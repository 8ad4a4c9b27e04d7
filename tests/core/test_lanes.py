"""In a lane one run is active at a time, in the order of the requests, and none is forgotten.

Method: the engine's own ``Lanes`` over a lane in memory; every look and every write is a point at
which another engine may act, or this one dies. What is read may be old, as from a deposed leader.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Coroutine, Generator, Sequence
from typing import Any, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.core import Moment, Plan, apply, effects, request
from treadle.engine.core.apply import DEFINITION_GONE_MS, without_definition
from treadle.engine.core.facts import RunPlaced
from treadle.engine.core.lanes import UNREADABLE, Glimpse, set_aside, standing
from treadle.engine.lane_log import Kept, Lane, LaneLog
from treadle.engine.lanes import Lanes
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.definition import TaskStep, WorkflowDefinition
from treadle.sdk.lanes import LaneRecord, Place
from treadle.sdk.messages import (
    CancelRequested,
    LaneEntered,
    LaneGranted,
    RunRequested,
    RunSuperseded,
    TimerFired,
)
from treadle.sdk.run import RunDocument

LANE = Lane.named("lane", "main")
PLAN = Plan(WorkflowDefinition(name="w", steps=(TaskStep(id="a", type="t"),)), "h")
PLACE = Place(7, "r")


class Point:
    """A point in time, between two acts of an engine."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Memory:
    """A lane's requests, documents and record; and the events that no engine has acked."""

    def __init__(self) -> None:
        self.requests: dict[int, Place] = {}
        self.documents: dict[str, list[RunDocument]] = {}
        self.notes: list[LaneRecord] = [LaneRecord(lane=LANE.name)]
        self.unacked: dict[int, tuple[str, Any]] = {}
        self.sequence = 0
        self.age = 0
        """How many versions behind a leader's answers are, where there are so many."""

    # ---------------------------------------------------------------- the world

    def store(self, run: str, event: Any) -> int:
        self.sequence += 1
        self.unacked[self.sequence] = (run, event)
        if isinstance(event, LaneEntered):
            self.requests[self.sequence] = Place(self.sequence, run, event.request)
        if isinstance(event, RunRequested) and not event.is_scheduled:
            self.requests[self.sequence] = Place(self.sequence, run)
        return self.sequence

    def read(self, run: str, *, age: int = 0) -> RunDocument | None:
        versions = [None, *self.documents.get(run, ())]
        return versions[max(0, len(versions) - 1 - age)]

    def is_under_way(self, at: int) -> bool:
        """Whether a request was not handled yet, or its run has not ended."""
        place = self.requests[at]
        document = self.read(place.run)
        if document is None:
            return True
        is_other = place.request != (document.requested if document.starts_ms else 0)
        return not (document.is_terminal or is_other or document.place not in (0, at))

    def write(self, run: str, new: RunDocument, over: RunDocument | None) -> bool:
        """Compare and set; whatever the moment, no more runs of the lane are active after it than
        may be, and none has overtaken another."""
        if self.read(run) is not over:
            return False
        is_begun = over is not None and over.status == "running"
        if new.status == "running" and not is_begun:
            before = [at for at in self.requests if at < new.place]
            under_way = [self.requests[at].run for at in before if self.is_under_way(at)]
            assert len(under_way) < new.places, f"{under_way} are not over while {run} starts"
        self.documents.setdefault(run, []).append(new)
        return True

    # ---------------------------------------------------------------- what Lanes asks for

    async def record(self, lane: Lane) -> Kept:
        await Point()
        revision = max(1, len(self.notes) - self.age)
        return Kept(self.notes[revision - 1], revision)

    async def put(self, lane: Lane, record: LaneRecord, revision: int) -> bool:
        await Point()
        if len(self.notes) != revision:
            return False
        self.notes.append(record)
        return True

    async def next(self, lane: Lane, after: int) -> Place | None:
        await Point()
        # A deposed leader lacks the newest requests, never one in between.
        known = sorted(self.requests)[: max(0, len(self.requests) - self.age)]
        return next((self.requests[at] for at in known if at > after), None)

    async def document(self, place: Place) -> Glimpse | None:
        await Point()
        found = self.read(place.run, age=self.age)
        return msgspec.convert(found, Glimpse, from_attributes=True) if found else None

    async def glimpses(self, places: Sequence[Place]) -> list[Glimpse | None]:
        return [await self.document(place) for place in places]

    async def grant(self, lane: Lane, place: Place) -> None:
        await Point()
        self.store(place.run, LaneGranted(lane=lane.name, request=place.sequence))
        await Point()

    async def enter(self, lane: Lane, run: str, request: int) -> None:
        await Point()
        self.store(run, LaneEntered(lane=lane.name, request=request))
        await Point()

    async def supersede(self, lane: Lane, place: Place, by: str) -> None:
        await Point()
        self.store(place.run, RunSuperseded(by=by, request=place.sequence))
        await Point()

    async def is_set_aside(self, place: Place) -> bool:
        await Point()
        return place.sequence not in self.unacked

    async def is_registered(self, document: Glimpse) -> bool:
        return True

    async def close(self, lane: Lane, place: Place) -> bool:
        await Point()
        assert place.sequence not in self.unacked, "it may still be handled"
        at = Moment(place.run, f"e{place.sequence}", place.sequence, place.sequence)
        return self.write(place.run, set_aside(place, lane.name, None, at, "main"), None)

    async def records(self, start: int) -> AsyncIterator[tuple[Lane, Kept]]:
        yield LANE, Kept(self.notes[-1], len(self.notes))


async def handle(memory: Memory, lanes: Lanes, sequence: int) -> None:
    """What an engine does with an event: compare and set, effects, ack."""
    run, event = memory.unacked[sequence]
    moment = Moment(run, f"e{sequence}", sequence, sequence)
    while True:
        await Point()
        old = memory.read(run)
        if old is not None and isinstance(event, LaneEntered):
            ahead = await lanes.ahead(LANE, memory.requests[sequence], old.places)
            behind = ahead.run if ahead else ""
            placed = RunPlaced(event.request, is_queued=ahead is not None, behind=behind)
            new = apply(PLAN, old, placed, moment)
        elif old is not None:
            new = apply(PLAN, old, event, moment)
        elif isinstance(event, RunRequested):
            ahead = await lanes.ahead(LANE, Place(sequence, run), event.places)
            is_queued, behind = ahead is not None, ahead.run if ahead else ""
            if event.is_scheduled:
                is_queued = False
            new = request(PLAN, event, moment, "main", is_queued=is_queued, behind=behind)
        else:
            return
        await Point()
        if new is old or memory.write(run, new, old):
            break
    if new.status == "scheduled":
        memory.store(run, TimerFired(kind="run_start", due_ms=new.starts_ms))
    for command in effects.of_document(PLAN, new):
        match command:
            case effects.EnterLane():
                await lanes.enter(LANE, run, new.requested)
            case effects.Supersede():
                await lanes.supersede(LANE, Place(new.place, run))
            case effects.SettleLane():
                await lanes.settle(LANE, new.places)
            case _:
                pass
    await Point()
    memory.unacked.pop(sequence, None)


async def sweep(lanes: Lanes) -> None:
    """What an engine does from time to time."""
    await Point()
    await lanes.sweep(0)


def finish(work: Coroutine[Any, Any, None]) -> None:
    """Let one engine act without interruption."""
    while goes_on(work):
        pass


def goes_on(work: Coroutine[Any, Any, None]) -> bool:
    """Let an engine act up to its next point; False if it is done, or has given up."""
    try:
        work.send(None)
    except (StopIteration, Unknown):
        return False
    return True


RUNS = ["r1", "r2", "r3", "r4"]
ACTS = st.one_of(
    st.tuples(
        st.just("request"),
        st.sampled_from(RUNS),
        st.sampled_from(("none", "none", "queue", "skip", "cancel_older")),
        st.sampled_from((0, 0, 1, 9)),
    ),
    st.tuples(st.just("end"), st.sampled_from(RUNS)),
    st.tuples(st.just("take"), st.integers(0, 5)),
    st.tuples(st.just("step"), st.integers(0, 3), st.integers(1, 8)),
    st.tuples(st.just("handle"), st.integers(0, 5), st.integers(0, 2)),
    st.tuples(st.just("die"), st.integers(0, 3)),
    st.tuples(st.just("poison"), st.integers(0, 5)),
    st.tuples(st.just("age"), st.integers(0, 2)),
    st.tuples(st.just("sweep")),
)


PLACES = [(1,), (2,), (3,), (1, 2, 3)]
"""Of the requests, in turn; a workflow's next version may have others."""


@given(acts=st.lists(ACTS, min_size=15, max_size=60), places=st.sampled_from(PLACES))
def test_whatever_engines_do_and_wherever_they_die_a_lane_keeps_its_promise(
    acts: list[tuple[Any, ...]], places: tuple[int, ...]
) -> None:
    memory = Memory()
    of_next = itertools.cycle(places)
    lanes = Lanes(cast(LaneLog, memory))
    engines: list[Coroutine[Any, Any, None]] = []

    def take(work: Coroutine[Any, Any, None]) -> None:
        work.send(None)  # To its first point.
        engines.append(work)

    for act, *args in acts:
        match act:
            case "request":
                wanted = RunRequested(
                    workflow="w",
                    definition="h",
                    lane="lane",
                    singleton=args[1],
                    places=next(of_next),
                    start_after_ms=args[2],
                )
                memory.store(args[0], wanted)
            case "end":
                memory.store(args[0], CancelRequested())
            case "take" if memory.unacked:
                events = list(memory.unacked)
                take(handle(memory, lanes, events[args[0] % len(events)]))
            case "step" if engines:
                engine = engines[args[0] % len(engines)]
                for _ in range(args[1]):
                    if not goes_on(engine):
                        engines.remove(engine)
                        break
            case "handle" if memory.unacked:
                memory.age = args[1]
                events = list(memory.unacked)
                finish(handle(memory, lanes, events[args[0] % len(events)]))
                memory.age = 0
            case "die" if engines:
                engines.pop(args[0] % len(engines)).close()
            case "poison" if memory.unacked:
                # Nobody can handle it: it is acked all the same, and the run it has ends.
                events = list(memory.unacked)
                run, _ = memory.unacked.pop(events[args[0] % len(events)])
                if (old := memory.read(run)) is not None:
                    memory.write(run, msgspec.structs.replace(old, status="failed"), old)
            case "age":
                memory.age = args[0]
            case "sweep":
                take(sweep(lanes))
            case _:
                pass
    memory.age = 0
    # Somebody waits behind whatever was left.
    memory.store("last", RunRequested(workflow="w", definition="h", lane="lane"))
    for engine in engines:
        finish(engine)
    _drain(memory, lanes, max(places))


def _drain(memory: Memory, lanes: Lanes, places: int) -> None:
    """Everything is handled at last, and each run that becomes active ends: so do all."""
    order: list[int] = []
    for _ in range(20 * (len(RUNS) + 1)):
        for sequence, (run, event) in list(memory.unacked.items()):
            if memory.read(run) is None and not isinstance(event, RunRequested):
                memory.unacked.pop(sequence)  # Nobody asks for its run any more.
            else:
                finish(handle(memory, lanes, sequence))
        finish(sweep(lanes))
        if memory.unacked:
            continue
        runs = {place.run for place in memory.requests.values()} | memory.documents.keys()
        found = [memory.read(run) for run in runs]
        active = [each for each in found if each is not None and each.status == "running"]
        assert len(active) <= places
        if all(each is not None and each.is_terminal for each in found):
            assert places > 1 or order == sorted(order), "first in, first out"
            return
        if active:
            order.append(active[0].place)
            memory.store(active[0].run, CancelRequested())
    raise AssertionError("somebody is queued, or was forgotten, for ever")


# ---------------------------------------------------------------- the rules, one by one


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, "coming"),
        (Glimpse("queued", 7), "queued"),
        (Glimpse("running", 7), "active"),
        (Glimpse("parked", 7), "active"),
        (Glimpse("a status of tomorrow", 7), "active"),
        (Glimpse("completed", 7), "over"),
        (Glimpse("failed", 7), "over"),
        (Glimpse("cancelled", 7), "over"),
        (Glimpse("running", 9), "over"),
        (Glimpse(UNREADABLE), "over"),
        (Glimpse("scheduled", 7, starts_ms=1), "over"),
    ],
)
def test_where_a_request_stands(document: Glimpse | None, expected: str) -> None:
    assert standing(PLACE, document) == expected


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        (None, "coming"),
        (Glimpse("queued", 7, starts_ms=1), "coming"),
        (Glimpse("queued", 7, starts_ms=1, placed=9), "queued"),
        (Glimpse("running", 7, starts_ms=1, placed=9), "active"),
        (Glimpse("queued", 7, starts_ms=1, placed=8), "over"),
        (Glimpse("queued", 6, starts_ms=1), "over"),
        (Glimpse("cancelled", 7, starts_ms=1), "over"),
    ],
)
def test_where_a_scheduled_run_stands_that_has_entered(
    document: Glimpse | None, expected: str
) -> None:
    assert standing(Place(9, "r", request=7), document) == expected


def test_a_glimpse_reads_what_a_document_leaves_out_as_running() -> None:
    document = RunDocument(run="r", workflow="w", definition="h", requested=7)
    glimpse = msgspec.json.decode(msgspec.json.encode(document), type=Glimpse)
    assert standing(PLACE, glimpse) == "active"


def _queued(**options: Any) -> tuple[Plan, RunDocument]:
    definition = msgspec.structs.replace(PLAN.definition, **options)
    plan = Plan(definition, "h")
    event = RunRequested(workflow="w", definition="h", lane="lane")
    return plan, request(plan, event, Moment("r", "e7", 1_000, 7), "main", is_queued=True)


def test_a_queued_run_has_no_step_and_no_deadline_until_it_is_granted() -> None:
    plan, run = _queued(timeout_s=5)
    assert (run.status, run.steps, run.deadline_ms, run.lane) == ("queued", {}, 0, "lane")
    granted = LaneGranted(lane="lane", request=7)
    begun = apply(plan, run, granted, Moment("r", "e9", 60_000, 9))
    assert (begun.status, begun.deadline_ms) == ("running", 65_000)
    assert begun.steps["a"].started_ms == 60_000
    assert apply(plan, begun, granted, Moment("r", "e10", 61_000, 10)) is begun
    fired = TimerFired(kind="run_deadline", due_ms=65_000)
    late = apply(plan, begun, fired, Moment("r", "t1", 65_000, 11))
    assert late.failure is not None and "5 s after its start in its lane" in late.failure.message


def test_a_grant_for_an_earlier_life_of_the_id_changes_nothing() -> None:
    plan, run = _queued()
    other = LaneGranted(lane="lane", request=6)
    assert apply(plan, run, other, Moment("r", "e9", 60_000, 9)) is run


def test_a_queued_run_asks_for_its_lane_and_for_nothing_else() -> None:
    plan, run = _queued(timeout_s=5)
    assert effects.of_document(plan, run) == (effects.SettleLane(),)
    begun = apply(plan, run, LaneGranted(lane="lane", request=7), Moment("r", "e9", 2_000, 9))
    assert effects.SettleLane() not in effects.of_document(plan, begun)
    ended = apply(plan, begun, CancelRequested(), Moment("r", "e10", 3_000, 10))
    assert effects.of_document(plan, ended)[-1] == effects.SettleLane()


@pytest.mark.parametrize("lane", ["lane", ""])
def test_a_run_that_has_ended_leaves_its_lane_if_it_had_one(lane: str) -> None:
    event = RunRequested(workflow="w", definition="h", lane=lane)
    run = request(None, event, Moment("r", "e7", 1_000, 7), "main")
    assert run.status == "failed"
    assert effects.of_document(None, run) == ((effects.SettleLane(),) if lane else ())


def test_a_run_whose_definition_is_gone_fails_once() -> None:
    plan, run = _queued()
    begun = apply(plan, run, LaneGranted(lane="lane", request=7), Moment("r", "e9", 2_000, 9))
    at_ms = begun.requested_ms + DEFINITION_GONE_MS
    assert without_definition(begun, Moment("r", "e10", at_ms - 1, 10)) is begun
    failed = without_definition(begun, Moment("r", "e10", at_ms, 10))
    assert (failed.status, failed.ended_ms) == ("failed", at_ms)
    assert failed.failure is not None and failed.failure.type == "unknown_workflow"
    assert failed.failure.retryable is False
    assert "'w' version 'h' is not registered any more" in failed.failure.message
    assert failed.steps["a"].status == "cancelled"
    assert without_definition(failed, Moment("r", "e11", at_ms + 1, 11)) is failed


def test_a_request_that_was_set_aside_is_a_run_that_failed_with_what_is_known_of_it() -> None:
    moment = Moment("r", "e7", 1_000, 7)
    event = RunRequested(workflow="w", definition="h", lane="lane", metadata={"for": "ana"})
    run = set_aside(PLACE, "", event, moment, "main")
    assert (run.workflow, run.definition, run.lane, run.metadata) == (
        *("w", "h", "lane"),
        {"for": "ana"},
    )
    unread = set_aside(PLACE, "lane", None, moment, "main")
    assert (unread.workflow, unread.lane, unread.requested, unread.ended_ms) == (
        *("", "lane"),
        *(7, 1_000),
    )
    glimpse = Glimpse(unread.status, unread.requested)
    assert standing(PLACE, glimpse) == "over"
