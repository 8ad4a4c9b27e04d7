"""Every collected start is in exactly one run, in the order of arrival, within the bounds.

Method: properties of the pure windows; and the engine's own ``Collecting`` over starts in memory,
where every look and every write is a point at which another engine may act, or this one dies.
Servers that do not lead may lack the newest starts, and records may be read old.
"""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Coroutine, Generator, Mapping
from typing import Any, NamedTuple, cast

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.collect_log import CollectLog, Found, Kept
from treadle.engine.collecting import Collecting
from treadle.engine.core.collecting import decided, requested
from treadle.engine.requesting import Requests
from treadle.sdk.bus.connection import Unknown
from treadle.sdk.collected import CollectedStart, WindowRecord, run_of
from treadle.sdk.collecting import Batch, Collect, Debounce
from treadle.sdk.definition import TaskStep, WorkflowDefinition
from treadle.sdk.payload import PAYLOAD_BYTES_MAX
from treadle.sdk.singletons import Placed
from treadle.sdk.subjects_of_starts import StartsOf
from treadle.sdk.windows import Member, Window, due_ms, extended, is_due

STARTS = StartsOf("w", "d")
HALF = PAYLOAD_BYTES_MAX // 2
RULES: list[Collect] = [
    Debounce(0.01, 0.01),
    Debounce(0.01, 0.035),
    Batch(1, 0.02),
    Batch(3, 0.02),
    Batch(1_000, 0.05),
]


def windows_of(rules: Mapping[str, Collect], members: list[Member]) -> list[Window]:
    """Return all windows of some starts, as if time had no end."""
    found: list[Window] = []
    window: Window | None = None
    for member in members:
        if window is not None:
            grown = extended(rules[window.version], window, member)
            if grown.last == window.last:
                assert grown.is_closed
                found.append(grown)
                window = None
            else:
                window = grown
        if window is None:
            window = extended(rules[member.version], None, member)
        elif window.last == member.sequence and not window.is_closed:
            continue
        if window.is_closed:
            found.append(window)
            window = None
    return [*found, window] if window is not None else found


@st.composite
def stored(draw: st.DrawFn) -> list[Member]:
    """Starts as they are stored: later ones have higher sequences, and mostly later times."""
    found: list[Member] = []
    sequence = time_ms = 0
    for _ in range(draw(st.integers(1, 25))):
        sequence += draw(st.integers(1, 3))
        time_ms += draw(st.sampled_from((0, 1, 5, 9, 10, 11, 40)))
        size = draw(st.sampled_from((1, 1, 1, HALF - 2, HALF)))
        version = draw(st.sampled_from(("v1", "v1", "v1", "v2")))
        found.append(Member(sequence, 1_000 + time_ms, size, version))
    return found


@given(stored(), st.sampled_from(RULES), st.sampled_from(RULES))
def test_windows_have_each_start_once_in_order_and_within_their_bounds(
    members: list[Member], rule: Collect, other: Collect
) -> None:
    rules = {"v1": rule, "v2": other}
    windows = windows_of(rules, members)
    assert sum(window.count for window in windows) == len(members)
    left = list(members)
    for window in windows:
        own, left = left[: window.count], left[window.count :]
        of = rules[window.version]
        assert (own[0].sequence, own[-1].sequence) == (window.first, window.last)
        assert {each.version for each in own} == {window.version}
        assert own[-1].time_ms - own[0].time_ms <= of.max_wait_s * 1_000
        if isinstance(of, Batch):
            assert len(own) <= of.max_size
            size = 2 + sum(each.size_bytes for each in own) + len(own) - 1
            assert size == window.size_bytes
            assert len(own) == 1 or size <= PAYLOAD_BYTES_MAX
        else:
            gaps = [b.time_ms - a.time_ms for a, b in itertools.pairwise(own)]
            assert all(gap <= of.period_s * 1_000 for gap in gaps)


@given(stored(), st.sampled_from(RULES))
def test_a_window_that_is_due_is_changed_by_nothing_that_comes_later(
    members: list[Member], rule: Collect
) -> None:
    members = [each._replace(version="v1") for each in members]
    window: Window | None = None
    for number, member in enumerate(members):
        if window is not None and is_due(rule, window, member.time_ms):
            for later in members[number:]:
                closed = msgspec.structs.replace(window, is_closed=True)
                assert extended(rule, window, later) == closed
            return
        window = extended(rule, window, member)


def test_a_debounce_is_due_a_period_after_the_last_start_and_at_most_so_long_after_the_first() -> (
    None
):
    rule = Debounce(10, 25)
    window = extended(rule, None, Member(1, 0, 1, "v"))
    assert due_ms(rule, window) == 10_000 and not is_due(rule, window, 10_000)
    window = extended(rule, window, Member(2, 9_000, 1, "v"))
    assert due_ms(rule, window) == 19_000
    window = extended(rule, window, Member(3, 18_000, 1, "v"))
    assert due_ms(rule, window) == 25_000 and is_due(rule, window, 25_001)
    assert extended(rule, window, Member(4, 25_001, 1, "v")).is_closed


def test_a_batch_is_due_when_it_is_full_and_at_most_so_long_after_the_first() -> None:
    rule = Batch(2, 25)
    window = extended(rule, None, Member(1, 0, 1, "v"))
    assert due_ms(rule, window) == 25_000 and not window.is_closed
    assert extended(rule, window, Member(2, 1, 1, "v")).is_closed


# ---------------------------------------------------------------- engines


class Point:
    """A point in time, between two acts of an engine."""

    def __await__(self) -> Generator[None, None, None]:
        yield


class Stored(NamedTuple):
    member: Member
    has_id: bool


class Memory:
    """The starts of one key, its record, its timer, the runs; and what no engine has acked."""

    def __init__(self, rules: Mapping[str, Collect]) -> None:
        self.rules = rules
        self.now = 1_000
        self.all: list[Member] = []
        self.starts_kept: dict[int, Stored] = {}
        self.records: list[WindowRecord] = []
        self.timer = 0
        self.unacked: dict[int, int] = {}
        """Sequence to when it was stored; a firing has the time 0."""
        self.requests: dict[str, list[Any]] = {}
        self.written = 0
        self.sequence = 0
        self.lag = 0
        """How many of the newest starts a server lacks, and how old records are read."""

    # ---------------------------------------------------------------- the world

    def store(self, size: int, version: str, *, has_id: bool) -> None:
        self.sequence += 1
        member = Member(self.sequence, self.now, size, version)
        self.all.append(member)
        self.starts_kept[self.sequence] = Stored(member, has_id)
        self.unacked[self.sequence] = self.now

    def fire(self) -> None:
        if 0 < self.timer <= self.now:
            self.timer = 0
            self.sequence += 1
            self.unacked[self.sequence] = 0

    # ---------------------------------------------------------------- what Collecting asks for

    async def now_ms(self) -> int:
        await Point()
        return self.now

    async def newest(self, starts: StartsOf) -> int:
        await Point()
        return max(self.starts_kept, default=0)

    async def definition(self, workflow: str, version: str) -> WorkflowDefinition:
        step = TaskStep(id="a", type="t")
        return WorkflowDefinition(name="w", steps=(step,), collect=self.rules[version])

    def _found(self, each: Stored) -> Found:
        raw = msgspec.Raw(msgspec.json.encode(each.member.sequence))
        return Found(each.member, CollectedStart(version=each.member.version, input=raw))

    async def starts(
        self, starts: StartsOf, after: int, up_to: int = 0
    ) -> AsyncIterator[tuple[int, Found | None]]:
        await Point()
        known = sorted(self.starts_kept)
        for sequence in known[: max(0, len(known) - self.lag)]:
            if sequence > after and (not up_to or sequence <= up_to):
                yield sequence, self._found(self.starts_kept[sequence])

    async def start(self, starts: StartsOf, sequence: int) -> Found | None:
        await Point()
        each = self.starts_kept.get(sequence)
        return self._found(each) if each else None

    async def starts_of_leader(self, starts: StartsOf, after: int, up_to: int) -> list[Found]:
        await Point()
        kept = sorted(self.starts_kept.items())
        return [self._found(each) for at, each in kept if after < at <= up_to]

    async def drop(self, starts: StartsOf, up_to: int, *, remembered_s: float) -> None:
        await Point()
        for sequence in [at for at, each in self.starts_kept.items() if not each.has_id]:
            if sequence <= up_to:
                del self.starts_kept[sequence]

    async def kept(self, starts: StartsOf) -> Kept:
        await Point()
        revision = max(0, len(self.records) - self.lag)
        return Kept(self.records[revision - 1] if revision else WindowRecord(), revision)

    async def put(self, starts: StartsOf, record: WindowRecord, revision: int) -> bool:
        await Point()
        if revision != len(self.records):
            return False
        self.records.append(record)
        await Point()
        return True

    async def timer_ms(self, starts: StartsOf) -> int:
        await Point()
        return self.timer

    async def set_timer(self, starts: StartsOf, due: int) -> None:
        await Point()
        self.timer = due

    # ---------------------------------------------------------------- its runs

    async def is_known(self, run: str) -> bool:
        await Point()
        return run in self.requests

    async def store_at(
        self,
        place: Placed,
        workflow: str,
        run: str,
        version: str,
        input: msgspec.Raw,
        metadata: Mapping[str, Any],
    ) -> None:
        await Point()
        told = [msgspec.json.decode(input), version, dict(metadata)]
        assert self.requests.setdefault(run, told) == told, "requested twice, it is the same"


def engine_on(memory: Memory) -> Collecting:
    return Collecting(cast(CollectLog, memory), cast(Requests, memory))


async def handle(memory: Memory, engine: Collecting, taken: dict[int, int]) -> None:
    """What an engine does with deliveries: settle the key, ack."""
    at_ms = max(taken.values()) if all(taken.values()) else 0
    if await engine.settle(STARTS, max(taken) if at_ms else 0, at_ms):
        for each in taken:
            memory.unacked.pop(each, None)


def goes_on(work: Coroutine[Any, Any, None]) -> bool:
    """Let an engine act up to its next point; False if it is done, or has given up."""
    try:
        work.send(None)
    except (StopIteration, Unknown):
        return False
    return True


ACTS = st.one_of(
    st.tuples(
        st.just("start"),
        st.sampled_from((1, 1, 1, HALF)),
        st.sampled_from(("v1", "v1", "v1", "v2")),
        st.booleans(),
    ),
    st.tuples(st.just("wait"), st.sampled_from((1, 5, 10, 11, 40, 3_000))),
    st.tuples(st.just("take"), st.integers(0, 1), st.integers(0, 3)),
    st.tuples(st.just("step"), st.integers(0, 1), st.integers(1, 9)),
    st.tuples(st.just("die"), st.integers(0, 1)),
    st.tuples(st.just("lag"), st.integers(0, 2)),
)


@given(
    acts=st.lists(ACTS, min_size=10, max_size=60),
    rule=st.sampled_from([*RULES, Batch(4, 9.0), Debounce(5, 9)]),
    other=st.sampled_from(RULES),
)
def test_whatever_engines_do_and_wherever_they_die_each_start_is_in_one_run(
    acts: list[tuple[Any, ...]], rule: Collect, other: Collect
) -> None:
    memory = Memory({"v1": rule, "v2": other})
    engines = [engine_on(memory), engine_on(memory)]
    works: list[Coroutine[Any, Any, None] | None] = [None, None]
    for act, *args in acts:
        match act:
            case "start":
                memory.store(args[0], args[1], has_id=args[2])
            case "wait":
                memory.now += args[0]
                memory.fire()
            case "take" if works[args[0]] is None and memory.unacked:
                # One key is settled by an engine once at a time.
                some = list(memory.unacked.items())
                taken = dict(some[args[1] :] or some)
                works[args[0]] = handle(memory, engines[args[0]], taken)
            case "step":
                work = works[args[0]]
                for _ in range(args[1]):
                    if work is not None and not goes_on(work):
                        works[args[0]] = work = None
            case "die":
                if (work := works[args[0]]) is not None:
                    work.close()
                works[args[0]], engines[args[0]] = None, engine_on(memory)
            case "lag":
                memory.lag = args[0]
            case _:
                pass
    memory.lag = 0
    for work in works:
        while work is not None and goes_on(work):
            pass
    _drain(memory, engines)
    found = sorted(memory.requests.values(), key=lambda told: told[2]["window_first"])
    wanted = windows_of(memory.rules, memory.all)
    assert [each[2]["window_first"] for each in found] == [each.first for each in wanted]
    left = [each.sequence for each in memory.all]
    for (given_, version, metadata), window in zip(found, wanted, strict=True):
        own, left = left[: window.count], left[window.count :]
        is_batch = isinstance(memory.rules[version], Batch)
        assert given_ == (own if is_batch else own[-1])
        assert (version, metadata["window_last"]) == (window.version, window.last)
        assert metadata["window_count"] == window.count
    assert left == []
    assert not [each for each in memory.starts_kept.values() if not each.has_id]


def _drain(memory: Memory, engines: list[Collecting]) -> None:
    """Everything is delivered at last, and every timer fires: nothing is swept."""
    for turn in range(400):
        memory.fire()
        if memory.unacked:
            work = handle(memory, engines[turn % 2], dict(memory.unacked))
            while goes_on(work):
                pass
        elif memory.timer:
            memory.now = max(memory.now, memory.timer)
        else:
            return
    raise AssertionError("it does not come to rest")


# ---------------------------------------------------------------- records


def test_a_decided_window_is_requested_before_the_next_one_is_decided() -> None:
    rule = Batch(1, 1)
    window = extended(rule, None, Member(5, 1_000, 1, "v"))
    record = decided(WindowRecord(closed=4), window, "r")
    assert (record.run, record.first, record.last, record.closed) == ("r", 5, 5, 4)
    with pytest.raises(AssertionError):
        decided(record, window, "s")
    assert requested(record) == WindowRecord(closed=5)
    with pytest.raises(AssertionError):
        decided(requested(record), window, "r")


def test_the_id_of_a_run_is_one_however_long_the_name_of_its_workflow() -> None:
    ids = {run_of("w" * 64, "d", sequence, 9) for sequence in range(100)}
    assert len(ids) == 100 and {len(each) for each in ids} == {64}
    assert run_of("w", "d", 1, 9) != run_of("w", "d", 1, 10)
