"""A provider's budget as its record has it: when there is room for a call, and how much is free.

    bucket    full, it lets a minute's worth through at once, and it fills evenly; stored is when it
              will be full again
    said      what the provider said last is left, and when it is all there again
    held      until then nobody calls

Pure: workers decide by it, and whoever lists budgets reads by it. Times are milliseconds since the
epoch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import msgspec

from treadle.sdk.messages import ProviderRecord, ProviderSaid, ProviderWaiter

MINUTE_MS = 60_000
HAIR_MS = 0.001
"""Above what the rounding of a time takes: what is there with the next hair is there."""
LOOKED_AT_MAX = 16
"""Of a line: so many have their turn at once at most, and may come in any order."""
LOWS_MAX = 32
"""Of low points that a record remembers."""


class Allowance(Protocol):
    """What may be used in a minute: of a budget, or of a record as the last budget left it."""

    @property
    def requests_per_minute(self) -> int:
        """0 is no bound."""
        ...

    @property
    def tokens_per_minute(self) -> int:
        """0 is no bound."""
        ...


def ordered(
    refused: Sequence[ProviderWaiter], others: Sequence[ProviderWaiter]
) -> list[ProviderWaiter]:
    """Return those who are waited for in their order, each once."""
    by_age = sorted(refused, key=lambda each: (each.since_ms, each.place))
    line = {each.place: each for each in (*by_age, *others)}
    return list(line.values())


def free_requests(record: ProviderRecord, now_ms: float) -> int | None:
    """Return how many requests are left now; None if nobody bounds them."""
    most = record.requests_per_minute
    return _free(most, record.requests_full_ms, record.requests, now_ms)


def free_tokens(record: ProviderRecord, now_ms: float) -> int | None:
    """Return how many tokens are left now; None if nobody bounds them."""
    return _free(record.tokens_per_minute, record.tokens_full_ms, record.tokens, now_ms)


def _free(most: int, full_ms: float, said: ProviderSaid | None, now_ms: float) -> int | None:
    now_ms += HAIR_MS
    lefts = [most - max(0.0, full_ms - now_ms) * most / MINUTE_MS] if most else []
    if said is not None and said.full_ms > now_ms:
        lefts.append(said.left_at(now_ms))
    return max(0, math.floor(min(lefts))) if lefts else None


def forecast(
    record: ProviderRecord, allowed: Allowance, sizes: Sequence[int], now_ms: float
) -> tuple[list[float], str]:
    """Return when each may call if each does as soon as it may, and what the last waits for."""
    times, at_ms, why = list[float](), float(now_ms), ""
    for tokens in sizes:
        free_ms, why = _room(record, allowed, tokens, at_ms)
        at_ms = max(at_ms, free_ms)
        times.append(at_ms)
        record = reserved_by(record, allowed, tokens, at_ms)
    return times, why


def _room(
    record: ProviderRecord, allowed: Allowance, tokens: int, now_ms: float
) -> tuple[float, str]:
    """Return from when there is room for a call, and what it waits for until then."""
    requests, most = allowed.requests_per_minute, allowed.tokens_per_minute
    bounds = (
        (record.held_until_ms, record.held_by),
        (
            _free_at_ms(record.requests_full_ms, requests, 1, now_ms),
            f"the budget of {record.name} is used up: {requests:,} requests a minute",
        ),
        (
            _free_at_ms(record.tokens_full_ms, most, tokens, now_ms),
            f"the budget of {record.name} is used up: {most:,} tokens a minute",
        ),
        (
            record.requests.free_at_ms(1, now_ms) if record.requests else 0,
            f"the provider said that it takes no more requests of {record.name} now",
        ),
        (
            record.tokens.free_at_ms(tokens, now_ms) if record.tokens else 0,
            f"the provider said that too few tokens are left of {record.name}",
        ),
    )
    return max(bounds, key=lambda bound: bound[0])


def reserved_by(
    record: ProviderRecord, allowed: Allowance, tokens: int, now_ms: float
) -> ProviderRecord:
    """Return the record with a call of so many tokens."""
    requests, most = allowed.requests_per_minute, allowed.tokens_per_minute
    number, low_ms = record.number + 1, max(0.0, record.tokens_full_ms - now_ms)
    return msgspec.structs.replace(
        record,
        number=number,
        lows=lowest((*record.lows, (number, low_ms))) if most else record.lows,
        requests_full_ms=_with(record.requests_full_ms, requests, 1, now_ms),
        tokens_full_ms=_with(record.tokens_full_ms, most, tokens, now_ms),
        reserved_tokens=tokens + (record.reserved_tokens if record.tokens_full_ms > now_ms else 0),
        requests=_less(record.requests, 1),
        tokens=_less(record.tokens, tokens),
    )


def gap_ms(allowed: Allowance, tokens: int) -> float:
    """Return the time between two such calls, once the budget is used up."""
    rates = (allowed.requests_per_minute, 1), (allowed.tokens_per_minute, tokens)
    return max(count * MINUTE_MS / rate if rate else 0.0 for rate, count in rates)


def _free_at_ms(full_ms: float, per_minute: int, count: int, now_ms: float) -> float:
    """Return from when a bucket lets so much through."""
    if not per_minute or full_ms <= now_ms:
        return now_ms  # More than a whole bucket is let through when it is full.
    return max(now_ms, min(full_ms, full_ms + count * MINUTE_MS / per_minute - MINUTE_MS))


def _with(full_ms: float, per_minute: int, count: int, now_ms: float) -> float:
    """Return when a bucket is full again after this."""
    return max(full_ms, now_ms) + count * MINUTE_MS / per_minute if per_minute else full_ms


def _less(said: ProviderSaid | None, count: int) -> ProviderSaid | None:
    return said and msgspec.structs.replace(said, left=said.left - count)


def lowest(lows: Sequence[tuple[int, float]]) -> tuple[tuple[int, float], ...]:
    """Return those than which no later one is lower; if they are many, a little too low."""
    found = list[tuple[int, float]]()
    for number, low in reversed(lows):
        if not found or low < found[-1][1]:
            found.append((number, low))
    found.reverse()
    while len(found) > LOWS_MAX:
        at = min(range(len(found) - 1), key=lambda k: found[k + 1][1] - found[k][1])
        found[at : at + 2] = [(found[at + 1][0], found[at][1])]
    return tuple(found)
