"""What is free of a provider's budget agrees with who is let in.

Method: properties over any record, at a given time. No I/O.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from treadle.sdk.messages import ProviderRecord, ProviderSaid
from treadle.sdk.provider_buckets import (
    HAIR_MS,
    MINUTE_MS,
    forecast,
    free_requests,
    free_tokens,
    reserved_by,
)

NOW = 1_700_000_000_000


@st.composite
def said(draw: st.DrawFn) -> ProviderSaid | None:
    limit = draw(st.integers(1, 5_000))
    left = draw(st.integers(-100, limit))
    age_ms, reset_ms = draw(st.integers(0, 90_000)), draw(st.integers(30_000, 90_000))
    at_ms = NOW - age_ms
    pace_ms = reset_ms / max(1, limit - left)
    some = ProviderSaid(left, limit, at_ms, at_ms + reset_ms, pace_ms)
    return draw(st.sampled_from([None, some]))


@st.composite
def records(draw: st.DrawFn) -> ProviderRecord:
    """Records of budgets of which a part is used, or all of it and more."""
    full = st.integers(-MINUTE_MS, 2 * MINUTE_MS)
    return ProviderRecord(
        name="p/m",
        requests_per_minute=draw(st.sampled_from([0, 1, 7, 50])),
        tokens_per_minute=draw(st.sampled_from([0, 1_000, 40_000])),
        requests_full_ms=NOW + draw(full),
        tokens_full_ms=NOW + draw(full),
        requests=draw(said()),
        tokens=draw(said()),
    )


def _limit(record: ProviderRecord) -> int:
    return record.tokens.limit if record.tokens and record.tokens.full_ms > NOW else 0


def has_room(record: ProviderRecord, tokens: int) -> bool:
    (at_ms,), _ = forecast(record, record, [tokens], NOW)
    return at_ms <= NOW + 2 * HAIR_MS


@given(records(), st.integers(1, 50))
def test_a_call_of_what_is_free_is_let_in_and_a_larger_one_is_not(
    record: ProviderRecord, more: int
) -> None:
    tokens = free_tokens(record, NOW)
    if free_requests(record, NOW) == 0:
        assert not has_room(record, 0)
        return
    if tokens != 0:
        assert has_room(record, tokens or 1_000_000)
    wholes = [each for each in (record.tokens_per_minute, _limit(record)) if each]
    # One that is larger than the whole is let through when all is there.
    if tokens is not None and tokens + more <= min(wholes):
        assert not has_room(record, tokens + more)


@given(records(), st.integers(1, 900))
def test_a_call_takes_what_it_reserves_of_what_is_free(record: ProviderRecord, tokens: int) -> None:
    after = reserved_by(record, record, tokens, NOW)
    for before, left, count in (
        (free_requests(record, NOW), free_requests(after, NOW), 1),
        (free_tokens(record, NOW), free_tokens(after, NOW), tokens),
    ):
        assert left == (None if before is None else max(0, before - count))
