"""Slots of one limit: never more than there are, none lost, and turns that are fair.
Method: any sequence of asks, leaves and grants, in any order, against a plain account of who was
given one; turns by example. The whole protocol with engines that die is in test_any_order.py."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.engine.core import rates, slots
from treadle.engine.core.flow import resolve
from treadle.sdk.definition import TaskStep
from treadle.sdk.flow import AGEING_MS, Concurrency, RateLimit
from treadle.sdk.messages import SlotRecord, SlotWaiter

NAMES = ("main.r1.a.work", "main.r2.a.work", "main.r3.a.work", "main.r4.a.work")
names = st.sampled_from(NAMES)
tokens = st.integers(1, 6)
asks = st.tuples(st.sampled_from(("enter", "leave", "queue", "grant")), names, tokens)


class Limit:
    """A record with those who wait for it, as the bucket keeps them."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.record = SlotRecord(limit=limit)
        self.waiters: dict[int, SlotWaiter] = {}
        self.order: list[str] = []
        self.now_ms = 0

    def enter(self, name: str, token: int) -> slots.Entry:
        self.record, entry = slots.enter(self.record, name, token, self.limit, self.now_ms)
        return entry

    def leave(self, name: str, below: int) -> None:
        self.record = slots.leave(self.record, name, below)

    def queue(self, name: str, token: int = 1, **whose: object) -> None:
        line = f"{whose.get('priority', 0)}-{whose.get('fair', '')}"
        waiter = SlotWaiter(address=name, token=token, line=line, since_ms=self.now_ms, **whose)  # type: ignore[arg-type]
        self.waiters[len(self.waiters) + 1] = waiter
        self.record = slots.queue(self.record, waiter, self.limit)

    def grant(self) -> None:
        """Give every free slot away, in turn."""
        while (line := slots.next_line(self.record)) is not None:
            after = self.record.lines[line].after
            waiting = (s for s, w in self.waiters.items() if s > after and w.line == line)
            sequence = next(waiting, 0)
            head = self.waiters.get(sequence)
            self.record, is_new = slots.grant(self.record, line, head, sequence, self.now_ms)
            if head is not None and is_new:
                self.order.append(head.address)

    def serve_all(self) -> list[str]:
        """Let everybody who waits have the slot in turn; return the order."""
        while not slots.is_idle(self.record):
            for holder in self.record.holders:
                self.leave(holder.address, holder.token + 1)
            self.grant()
        return self.order


@given(st.integers(1, 3), st.lists(asks, max_size=60))
def test_there_are_never_more_holders_than_slots(
    limit: int, asked: list[tuple[str, str, int]]
) -> None:
    one = Limit(limit)
    for verb, name, token in asked:
        match verb:
            case "enter":
                one.enter(name, token)
            case "leave":
                one.leave(name, token)
            case "queue":
                one.queue(name, token)
            case _:
                one.grant()
        holders = one.record.holders
        assert len(holders) <= limit
        assert len({holder.address for holder in holders}) == len(holders), "one slot each"


@given(st.integers(1, 3), st.lists(asks, max_size=60))
def test_asking_again_changes_nothing(limit: int, asked: list[tuple[str, str, int]]) -> None:
    one = Limit(limit)
    for verb, name, token in asked:
        match verb:
            case "enter":
                entry = one.enter(name, token)
                before = one.record
                assert one.enter(name, token) == entry
            case "leave":
                one.leave(name, token)
                before = one.record
                one.leave(name, token)
            case "queue":
                one.queue(name, token)
                continue
            case _:
                one.grant()
                before = one.record
                one.grant()
        assert one.record == before


@given(st.integers(1, 3), st.lists(asks, max_size=60))
def test_whoever_comes_late_takes_nothing_from_a_later_token(
    limit: int, asked: list[tuple[str, str, int]]
) -> None:
    one = Limit(limit)
    for verb, name, token in asked:
        held = {h.address: h.token for h in one.record.holders}
        if verb == "enter":
            entry = one.enter(name, token)
            assert (entry == "late") == (held.get(name, 0) > token)
        elif verb == "leave":
            one.leave(name, token)
        else:
            one.queue(name, token)
            one.grant()
        now = {h.address: h.token for h in one.record.holders}
        for address, at in held.items():
            if address != name or at > token:
                assert now.get(address, 0) >= at


@given(st.integers(1, 3), st.lists(st.tuples(names, tokens), max_size=20))
def test_everybody_who_waits_has_a_turn_and_no_slot_is_lost(
    limit: int, waiting: list[tuple[str, int]]
) -> None:
    one = Limit(limit)
    for name, token in waiting:
        one.queue(name, token)
    one.grant()
    served = one.serve_all()
    assert set(served) == {name for name, _ in waiting}
    assert one.record.holders == ()
    assert one.enter("main.r9.a.work", 1) == "held"


def test_nobody_takes_a_slot_for_which_others_wait() -> None:
    one = Limit(1)
    assert one.enter("first", 1) == "held"
    assert one.enter("second", 1) == "full"
    one.queue("second")
    one.leave("first", 2)
    assert one.enter("third", 1) == "full", "the slot is free, and it is the second one's"
    one.grant()
    assert [holder.address for holder in one.record.holders] == ["second"]


def test_a_higher_priority_comes_first_and_waiting_makes_up_for_a_lower_one() -> None:
    one = Limit(1)
    one.enter("holder", 1)
    one.queue("low", priority=0)
    one.now_ms = 5 * AGEING_MS - 1
    one.queue("middle", priority=4)
    one.queue("high", priority=5)
    assert one.serve_all() == ["high", "low", "middle"]


def test_those_of_one_priority_take_turns_by_whom_they_belong_to() -> None:
    one = Limit(1)
    one.enter("holder", 1)
    for number in range(100):
        one.queue(f"busy{number}", fair="busy")
    for number in range(3):
        one.queue(f"quiet{number}", fair="quiet")
    served = one.serve_all()
    assert max(served.index(f"quiet{n}") for n in range(3)) <= 6
    assert [name for name in served if name.startswith("busy")] == [f"busy{n}" for n in range(100)]


@pytest.mark.parametrize("limit", [1, 3])
def test_a_weight_is_how_many_turns_one_has_when_another_has_one(limit: int) -> None:
    one = Limit(limit)
    for number in range(limit):
        one.enter(f"holder{number}", 1)
    for number in range(90):
        one.queue(f"gold{number}", fair="gold", weight=3.0)
        one.queue(f"free{number}", fair="free", weight=1.0)
    turns = Counter(name[:4] for name in one.serve_all()[:40])
    assert abs(turns["gold"] - 30) <= 2


def test_a_steps_own_priority_and_weight_are_what_its_dispatches_wait_with() -> None:
    step = TaskStep(
        id="a",
        type="t",
        concurrency=(Concurrency(1),),
        priority='input["urgency"]',
        fair_by='input["tenant"]',
        weights={"gold": 3.0},
    )
    gold = resolve("w", step, {"urgency": 7, "tenant": "gold"}, {})
    assert (gold.priority, gold.fair, gold.weight) == (7, "gold", 3.0)
    free = resolve("w", step, {"urgency": -7, "tenant": "free"}, {})
    assert (free.priority, free.fair, free.weight) == (-7, "free", 1.0)
    assert resolve("w", step, {"urgency": 7, "tenant": "gold"}, {}, 50).priority == 50


@given(st.lists(st.integers(0, 400), max_size=60), st.integers(1, 5), st.integers(1, 100))
def test_no_more_begin_in_a_while_than_the_rate_and_its_burst_allow(
    pauses_us: list[int], burst: int, interval_us: int
) -> None:
    now_us, next_us = 1_000_000, 0
    begun: list[int] = []
    for pause_us in pauses_us:
        now_us += pause_us
        next_us, begins_us = rates.reserve(next_us, now_us, interval_us, burst)
        assert begins_us >= now_us, "nobody begins before he has come"
        begun.append(begins_us)
    assert begun == sorted(begun), "and nobody before those who came first"
    for first in range(len(begun)):
        for last in range(first, len(begun)):
            allowed = burst + (begun[last] - begun[first]) // interval_us
            assert last - first + 1 <= allowed


@given(
    st.lists(st.tuples(st.integers(0, 400), st.integers(-(10**10), 10**10)), max_size=40),
    st.integers(1, 5),
    st.integers(1, 100),
)
def test_nobody_waits_longer_than_for_those_before_him_whatever_a_clock_once_showed(
    readings: list[tuple[int, int]], burst: int, interval_us: int
) -> None:
    true_us, next_us, stored_us = 10**12, 0, 0
    for before, (pause_us, wrong_by_us) in enumerate(readings):
        true_us += pause_us
        now_us = true_us + wrong_by_us
        standing_us = rates.counted_from(next_us, stored_us, now_us)
        next_us, begins_us = rates.reserve(standing_us, now_us, interval_us, burst)
        stored_us = now_us
        assert 0 <= begins_us - now_us <= before * interval_us


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.integers(0, 10**6))
def test_a_clock_that_goes_on_changes_nothing(next_us: int, stored_us: int, pause_us: int) -> None:
    assert rates.counted_from(next_us, stored_us, stored_us + pause_us) == next_us


@pytest.mark.parametrize("limit", [Concurrency(1), RateLimit(1, 1.0)])
def test_a_limit_with_a_name_is_shared_by_value_wherever_the_value_is_found(
    limit: Concurrency | RateLimit,
) -> None:
    def key(expression: str, name: str) -> str:
        scope = "namespace" if name else "type"
        own = msgspec.structs.replace(limit, scope=scope, name=name, key=expression)
        field = "concurrency" if isinstance(limit, Concurrency) else "rate_limits"
        step = msgspec.structs.replace(TaskStep(id="a", type="t"), **{field: (own,)})
        flow = resolve("w", step, {"account": "A", "acc": "A", "other": "B"}, {})
        return (*flow.slots, *flow.rates)[0].key

    assert key('input["account"]', "acct") == key('input["acc"]', "acct")
    assert key('input["account"]', "acct") != key('input["other"]', "acct")
    assert key('input["account"]', "") != key('input["acc"]', ""), "without one its key names it"


def test_those_that_begin_together_begin_when_all_of_them_may() -> None:
    next_us, first_us = rates.reserve(0, 10_000, 1_000, 3)
    next_us, both_us = rates.reserve(next_us, 10_000, 1_000, 3, 2)
    assert (first_us, both_us) == (10_000, 10_000)
    next_us, both_us = rates.reserve(next_us, 10_000, 1_000, 3, 2)
    assert both_us == 12_000
    # More than the burst wait for all of it, and the next one waits for what is beyond.
    next_us, many_us = rates.reserve(next_us, 10_000, 1_000, 3, 5)
    assert many_us == 15_000
    assert rates.reserve(next_us, 10_000, 1_000, 3)[1] == 18_000


def test_a_rate_saves_up_its_burst_and_no_more() -> None:
    next_us = 0
    dues: list[int] = []
    for _ in range(4):
        next_us, due_us = rates.reserve(next_us, 10_000, 1_000, 2)
        dues.append(due_us - 10_000)
    assert dues == [0, 0, 1_000, 2_000]
