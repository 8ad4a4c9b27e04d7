"""What workers may ask of a provider together: never more than the bucket holds, nothing leaks.

Method: properties over any calls at any times; the rest by example. No clock, no server.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.messages import ProviderRecord
from treadle.sdk.provider_buckets import MINUTE_MS
from treadle.worker.agent.core.conversation import RateLimits
from treadle.worker.agent.core.provider_budget import (
    LINE_MS_MAX,
    ProviderBudget,
    admit,
    corrected,
    held,
    reservation,
    told,
)

NOW = 1_700_000_000_000
EMPTY = ProviderRecord(name="p/m")
calls = st.lists(
    st.tuples(st.sampled_from((0, 1, 400, 5_000, 70_000)), st.integers(1, 1_500)), max_size=60
)


@given(calls, st.sampled_from((0, 3, 10)), st.sampled_from((0, 1_000, 4_000)))
def test_in_no_time_more_passes_than_a_full_bucket_and_what_it_fills_meanwhile(
    asked: list[tuple[int, int]], requests: int, tokens: int
) -> None:
    budget = ProviderBudget(requests_per_minute=requests, tokens_per_minute=tokens)
    record, now, passed = EMPTY, NOW, list[tuple[int, int]]()
    for later, size in asked:
        now += later
        admission = admit(record, budget, size, now)
        record = admission.record
        assert (admission.wait_ms > 0) == bool(admission.why)
        if not admission.wait_ms:
            passed.append((now, size))
    for first, (begun, _) in enumerate(passed):
        for last in range(first, len(passed)):
            minutes = (passed[last][0] - begun) / MINUTE_MS
            within = passed[first : last + 1]
            if requests:
                assert len(within) <= requests * (1 + minutes) + 1e-6
            if tokens:
                # Only a full bucket lets a call through that is larger than itself.
                largest = max(size for _, size in within)
                most = max(tokens, largest) + tokens * minutes
                assert sum(size for _, size in within) <= most + 1e-6


@given(calls, st.sampled_from((1, 3, 10)), st.sampled_from((0, 1_000, 4_000)))
def test_what_nobody_corrects_is_over_by_itself_and_a_call_passes_when_it_was_told_to_come(
    asked: list[tuple[int, int]], requests: int, tokens: int
) -> None:
    budget = ProviderBudget(requests_per_minute=requests, tokens_per_minute=tokens)
    record, now = EMPTY, NOW
    for later, size in asked:
        now += later
        admission = admit(record, budget, size, now)
        record = admission.record
        if admission.wait_ms:
            assert admission.wait_ms <= LINE_MS_MAX + 3 * MINUTE_MS
            assert not admit(record, budget, size, now + admission.wait_ms).wait_ms
    assert record.requests_full_ms <= now + MINUTE_MS
    assert not admit(record, budget, 1_500, now + 4 * MINUTE_MS).wait_ms


def test_those_who_come_too_early_are_told_to_come_one_after_the_other() -> None:
    budget = ProviderBudget(requests_per_minute=6)
    record = EMPTY
    for _ in range(6):
        record = admit(record, budget, 1, NOW).record
    waits = []
    for waiting in range(3):
        record, wait_ms, _ = admit(record, budget, 1, NOW, [1] * waiting)
        waits.append(wait_ms)
    assert waits == [10_000, 20_000, 30_000]
    for wait_ms in waits:
        admission = admit(record, budget, 1, NOW + wait_ms)
        assert not admission.wait_ms
        record = admission.record


def test_a_call_passes_nobody_who_waits_though_there_would_be_room_for_it_alone() -> None:
    budget = ProviderBudget(tokens_per_minute=1_000)
    record = admit(EMPTY, budget, 500, NOW).record
    assert not admit(record, budget, 100, NOW).wait_ms
    behind = admit(record, budget, 100, NOW, [600])
    assert behind.wait_ms == 12_000, "when there is room for both"
    assert not admit(record, budget, 100, NOW, [300]).wait_ms, "there is room for both now"
    unseen = admit(record, budget, 100, NOW, [1] * 16, are_more=True)
    assert unseen.wait_ms and "others wait" in unseen.why


def test_what_was_reserved_is_replaced_by_what_was_used() -> None:
    budget = ProviderBudget(tokens_per_minute=1_000)
    record = admit(EMPTY, budget, 900, NOW).record
    mine = reservation(record, 900)
    assert (admit(record, budget, 500, NOW).wait_ms, record.reserved_tokens) == (24_000, 900)
    less = corrected(record, budget, mine, 100, NOW)
    assert not admit(less, budget, 500, NOW).wait_ms
    assert less.reserved_tokens == 0
    more = corrected(record, budget, mine, 1_000, NOW)
    assert admit(more, budget, 500, NOW).wait_ms == 30_000
    free = corrected(record, ProviderBudget(), mine, 1, NOW)
    assert free.tokens_full_ms == record.tokens_full_ms


def test_what_came_back_by_itself_is_not_given_back_a_second_time() -> None:
    budget = ProviderBudget(tokens_per_minute=1_000)
    record = admit(EMPTY, budget, 900, NOW).record
    mine, later = reservation(record, 900), NOW + MINUTE_MS
    record = admit(record, budget, 900, later).record
    assert corrected(record, budget, mine, 100, later).tokens_full_ms == record.tokens_full_ms


def test_after_a_429_nobody_calls_until_the_longest_time_that_was_named() -> None:
    record = held(held(EMPTY, 30_000, "limited", NOW), 5_000, "again", NOW)
    admission = admit(record, ProviderBudget(), 1, NOW)
    assert (admission.wait_ms, admission.why) == (30_000, "limited")
    assert not admit(record, ProviderBudget(), 1, NOW + 30_000).wait_ms


@pytest.mark.parametrize(
    ("said", "tokens", "wait_ms"),
    [
        (RateLimits(requests_left=0, requests_limit=10, requests_reset_ms=20_000), 1, 2_000),
        (RateLimits(requests_left=1, requests_limit=10, requests_reset_ms=20_000), 1, 0),
        (RateLimits(tokens_left=500, tokens_limit=1_500, tokens_reset_ms=10_000), 800, 3_000),
        (RateLimits(tokens_left=500, tokens_limit=1_500, tokens_reset_ms=10_000), 9_999, 10_000),
        (RateLimits(tokens_left=0), 800, 0),
        (RateLimits(requests_left=0, requests_limit=10), 1, 0),
        (RateLimits(requests_left=10, requests_limit=10, requests_reset_ms=0), 1, 0),
    ],
    ids=["none", "one", "some", "too-much", "no-limit", "no-reset", "all"],
)
def test_what_the_provider_said_is_left_comes_back_evenly_until_it_is_reset(
    said: RateLimits, tokens: int, wait_ms: int
) -> None:
    record = told(EMPTY, said, NOW)
    admission = admit(record, ProviderBudget(), tokens, NOW)
    assert admission.wait_ms == wait_ms
    assert not admit(admission.record, ProviderBudget(), tokens, NOW + 20_000).wait_ms


def test_calls_under_way_are_taken_off_what_the_provider_said() -> None:
    said = RateLimits(requests_left=2, requests_limit=10, requests_reset_ms=8_000)
    record = told(EMPTY, said, NOW)
    for _ in range(2):
        admission = admit(record, ProviderBudget(), 1, NOW)
        assert not admission.wait_ms
        record = admission.record
    assert admit(record, ProviderBudget(), 1, NOW).wait_ms == 1_000


def test_a_negative_budget_is_a_problem_with_its_value() -> None:
    assert ProviderBudget(tokens_per_minute=-1).problems() == [
        "provider_budget: tokens_per_minute is -1, and less than 0 is no bound. Give a number, or 0"
    ]
