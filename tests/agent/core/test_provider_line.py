"""The line before a provider: first come, first served, within the budget, and nobody starves.

Method: a property plays any arrivals against the pure core, with a line in memory. Calls take time
and use less than they reserved; waiters look when they are called, or by themselves. No server.
"""

from __future__ import annotations

import heapq
from itertools import count

from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.messages import ProviderRecord, ProviderWaiter
from treadle.sdk.provider_buckets import LOOKED_AT_MAX, MINUTE_MS
from treadle.worker.agent.core.provider_budget import (
    AGAIN_MS,
    GRACE_MS,
    LATE_MS,
    ProviderBudget,
    Reservation,
    admit,
    answered,
    calls,
    corrected,
    is_overdue,
    reservation,
)

NOW = 1_700_000_000_000
PER_MINUTE = 4_000
EMPTY = ProviderRecord(name="p/m")


class Play:
    """Steps that ask, wait in line, call for a time, and settle with what they used."""

    def __init__(self, budget: ProviderBudget, deaf: frozenset[int] = frozenset()) -> None:
        self.budget, self.deaf = budget, deaf
        self.record, self.line, self.now = EMPTY, list[ProviderWaiter](), NOW
        self.asked, self.passed = list[str](), list[tuple[str, int, int]]()
        self.looks = 0
        self._todo, self._numbers = list[tuple[int, int, str, tuple[int, ...]]](), count()
        self._due = dict[str, int]()
        self._held = dict[str, Reservation]()
        self._sizes = dict[str, tuple[int, int, int]]()

    def arrive(self, at_ms: int, reserved: int, used: int, takes_ms: int) -> None:
        name = f"s{len(self._sizes)}"
        self._sizes[name] = (reserved, used, takes_ms)
        self._push(at_ms, "ask", name)

    def run(self) -> None:
        while self._todo:
            self.now, _, what, (number, *token) = heapq.heappop(self._todo)
            name = f"s{number}"
            if what == "settle":
                self._settle(name)
            elif what == "ask" or self._due.get(name) == token[0]:
                self._ask(name)

    def _push(self, at_ms: int, what: str, name: str, token: int = 0) -> None:
        item = (at_ms, next(self._numbers), what, (int(name[1:]), token))
        heapq.heappush(self._todo, item)

    def _ask(self, name: str) -> None:
        self.looks += 1
        reserved, used, takes_ms = self._sizes[name]
        me = ProviderWaiter(step=name, tokens=reserved)
        if name not in self.asked:
            self.asked.append(name)
        places = [each.place for each in self.line]
        before = places.index(me.place) if me.place in places else len(places)
        first = self.line[:LOOKED_AT_MAX]
        admission = admit(
            answered(self.record, me.place),
            self.budget,
            reserved,
            self.now,
            [each.tokens for each in first[:before]],
            are_more=before >= LOOKED_AT_MAX,
        )
        if admission.wait_ms:
            if before == len(places):
                self.line.append(me)
            self._due[name] = self.now + admission.wait_ms
            self._push(self._due[name], "look", name, self._due[name])
            self._call(admission.record, me.place, only_ready=True)
            return
        self._due.pop(name, None)
        self.line = [each for each in self.line if each.place != me.place]
        self.passed.append((name, self.now, used))
        self._held[name] = reservation(admission.record, reserved)
        self._push(self.now + takes_ms, "settle", name)
        self._call(admission.record)

    def _settle(self, name: str) -> None:
        _, used, _ = self._sizes[name]
        mine = self._held.pop(name)
        self._call(corrected(self.record, self.budget, mine, used, self.now))

    def _call(self, record: ProviderRecord, asking: str = "", *, only_ready: bool = False) -> None:
        self.record, called = calls(
            record, self.budget, self.line[:LOOKED_AT_MAX], self.now, asking
        )
        for waiter, at_ms in called:
            is_late = self._due[waiter.step] > at_ms + LATE_MS
            is_wanted = is_late if at_ms > self.now else True
            is_wanted = is_wanted and not (only_ready and at_ms > self.now)
            if is_wanted and next(self._numbers) not in self.deaf:
                self._due[waiter.step] = self.now
                self._push(self.now, "look", waiter.step, self.now)


arrivals = st.lists(
    st.tuples(
        st.sampled_from((0, 0, 0, 50, 3_000, 20_000)),
        st.integers(1, 1_500),
        st.integers(0, 100),
        st.sampled_from((0, 200, 5_000, 40_000)),
    ),
    max_size=40,
)


def played(
    found: list[tuple[int, int, int, int]], requests: int, deaf: frozenset[int] = frozenset()
) -> Play:
    budget = ProviderBudget(requests_per_minute=requests, tokens_per_minute=PER_MINUTE)
    play, at_ms = Play(budget, deaf), NOW
    for later, reserved, percent, takes_ms in found:
        at_ms += later
        play.arrive(at_ms, reserved, reserved * percent // 100, takes_ms)
    play.run()
    return play


def check_within(play: Play, requests: int) -> None:
    for first, (_, begun, _) in enumerate(play.passed):
        for last in range(first, len(play.passed)):
            minutes = (play.passed[last][1] - begun) / MINUTE_MS
            within = play.passed[first : last + 1]
            assert sum(used for _, _, used in within) <= PER_MINUTE * (1 + minutes) + 1e-6
            assert not requests or len(within) <= requests * (1 + minutes) + 1e-6


@given(arrivals, st.sampled_from((0, 3, 30)))
def test_all_are_let_in_in_the_order_in_which_they_asked_and_never_above_the_budget(
    found: list[tuple[int, int, int, int]], requests: int
) -> None:
    play = played(found, requests)
    assert [name for name, _, _ in play.passed] == play.asked
    assert len(play.passed) == len(found) and not play.line
    check_within(play, requests)
    assert play.looks <= 6 * len(found) + 1, "those who sleep cost nothing"


@given(arrivals, st.sampled_from((0, 3)), st.frozensets(st.integers(0, 400), max_size=200))
def test_calls_that_get_lost_lose_nobody_and_nothing_passes_above_the_budget(
    found: list[tuple[int, int, int, int]], requests: int, deaf: frozenset[int]
) -> None:
    play = played(found, requests, deaf)
    assert sorted(name for name, _, _ in play.passed) == sorted(play.asked)
    check_within(play, requests)


def test_answers_shorter_than_estimated_let_the_others_in_at_once() -> None:
    play = played([(0, 1_150, 10, 300)] * 14, 0)
    assert play.passed[-1][1] - NOW < 3_000, "all fit a minute's worth"


def test_whoever_was_called_is_called_again_only_after_a_while_and_given_up_after_longer() -> None:
    line = [ProviderWaiter(run="r", step="s", tokens=1)]
    budget = ProviderBudget(tokens_per_minute=100)
    record, called = calls(EMPTY, budget, line, NOW)
    assert called == ((line[0], NOW),)
    assert calls(record, budget, line, NOW + AGAIN_MS - 1).called == ()
    assert calls(record, budget, line, NOW + AGAIN_MS).called
    place = line[0].place
    assert not is_overdue(record, place, NOW + GRACE_MS)
    assert is_overdue(record, place, NOW + GRACE_MS + 1)
    assert not is_overdue(answered(record, place), place, NOW + GRACE_MS + 1)
    assert calls(record, budget, [], NOW).called == ()
