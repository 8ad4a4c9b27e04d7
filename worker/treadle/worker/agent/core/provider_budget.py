"""What workers may ask of a model's provider together: pure functions over one shared record.

    budget    a bucket for requests and one for tokens: full, each lets a minute's worth through at
              once, and it fills evenly. Stored is when it will be full again, so a reservation
              that nobody corrects (its worker was killed) is over within its minute
    said      what the provider said last is left, and when it is all there again
    held      until then nobody calls: a 429
    line      when the last one who came too early was told to come again: the next one comes after

Times are milliseconds since the epoch. What a record says of the past means nothing.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.worker.agent.core.conversation import RateLimits

MINUTE_MS = 60_000
HELD_MS_MAX = 24 * 3600 * 1000
"""A day: a provider may say anything."""
LINE_MS_MAX = 10 * MINUTE_MS
"""Whoever is told to come later than this asks again: those before him may have gone."""


class ProviderBudget(msgspec.Struct, frozen=True, kw_only=True):
    """What all workers together may use of a provider in a minute; 0 is no bound of one's own.

    ``name`` is what is counted together: agents of one name share. By default it is the provider
    and the model, ``anthropic/claude-...``.
    """

    requests_per_minute: int = 0
    tokens_per_minute: int = 0
    """Input that no cache served, and output."""
    name: str = ""

    def problems(self) -> list[str]:
        """Return what is wrong with it."""
        return [
            f"provider_budget: {field} is {value}, and less than 0 is no bound. Give a number, or 0"
            for field, value in (
                ("requests_per_minute", self.requests_per_minute),
                ("tokens_per_minute", self.tokens_per_minute),
            )
            if value < 0
        ]


class Said(msgspec.Struct, frozen=True):
    """What a provider said is left of a limit, as it fills evenly."""

    left: float
    """Less what was reserved since."""
    limit: int
    at_ms: float
    full_ms: float
    """When it said that all is there again: from then on this says nothing."""
    pace_ms: float
    """In how long one comes back."""

    def free_at_ms(self, count: float, now_ms: float) -> float:
        """Return from when so much is left."""
        if self.full_ms <= now_ms:
            return now_ms
        missing = min(count, self.limit) - self.left
        return min(self.full_ms, max(now_ms, self.at_ms + missing * self.pace_ms))


class ProviderRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is stored of a provider, once for all workers."""

    name: str
    requests_full_ms: float = 0
    tokens_full_ms: float = 0
    requests: Said | None = None
    tokens: Said | None = None
    held_until_ms: float = 0
    held_by: str = ""
    """Why nobody calls until then."""
    line_ms: float = 0
    write: str = ""
    """Nonce of the write: recognises one whose acknowledgement was lost."""


class Admission(NamedTuple):
    """Whether a call may be made now."""

    record: ProviderRecord
    """As it stands with the call, or with who waits."""
    wait_ms: int
    """0: it may. Else how long until it is worth asking again."""
    why: str = ""


def admit(record: ProviderRecord, budget: ProviderBudget, tokens: int, now_ms: int) -> Admission:
    """Reserve a call of so many tokens, or say how long to wait."""
    rates = (budget.requests_per_minute, 1), (budget.tokens_per_minute, tokens)
    bounds = (
        (record.held_until_ms, record.held_by),
        (
            _free_at_ms(record.requests_full_ms, *rates[0], now_ms),
            f"the budget of {record.name} is used up: {rates[0][0]:,} requests a minute",
        ),
        (
            _free_at_ms(record.tokens_full_ms, *rates[1], now_ms),
            f"the budget of {record.name} is used up: {rates[1][0]:,} tokens a minute",
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
    free_at_ms, why = max(bounds, key=lambda bound: bound[0])
    if free_at_ms > now_ms:
        gap_ms = max(count * MINUTE_MS / rate if rate else 0.0 for rate, count in rates)
        come_ms = min(max(free_at_ms, record.line_ms + gap_ms), free_at_ms + LINE_MS_MAX)
        waiting = msgspec.structs.replace(record, line_ms=come_ms)
        return Admission(waiting, max(1, round(come_ms - now_ms)), why)
    reserved = msgspec.structs.replace(
        record,
        requests_full_ms=_with(record.requests_full_ms, *rates[0], now_ms),
        tokens_full_ms=_with(record.tokens_full_ms, *rates[1], now_ms),
        requests=_less(record.requests, 1),
        tokens=_less(record.tokens, tokens),
    )
    return Admission(reserved, 0)


def _free_at_ms(full_ms: float, per_minute: int, count: int, now_ms: float) -> float:
    """Return from when a bucket lets so much through."""
    if not per_minute or full_ms <= now_ms:
        return now_ms  # More than a whole bucket is let through when it is full.
    return max(now_ms, min(full_ms, full_ms + count * MINUTE_MS / per_minute - MINUTE_MS))


def _with(full_ms: float, per_minute: int, count: int, now_ms: float) -> float:
    """Return when a bucket is full again after this."""
    return max(full_ms, now_ms) + count * MINUTE_MS / per_minute if per_minute else full_ms


def _less(said: Said | None, count: int) -> Said | None:
    return said and msgspec.structs.replace(said, left=said.left - count)


def corrected(
    record: ProviderRecord, budget: ProviderBudget, reserved: int, used: int, now_ms: int
) -> ProviderRecord:
    """Replace the tokens that were reserved by those that were used."""
    if not budget.tokens_per_minute or reserved == used:
        return record
    more_ms = (used - reserved) * MINUTE_MS / budget.tokens_per_minute
    start_ms = max(record.tokens_full_ms, now_ms) if more_ms > 0 else record.tokens_full_ms
    return msgspec.structs.replace(record, tokens_full_ms=max(0.0, start_ms + more_ms))


def told(record: ProviderRecord, said: RateLimits | None, now_ms: int) -> ProviderRecord:
    """Take note of what the provider said is left."""
    if said is None:
        return record
    return msgspec.structs.replace(
        record,
        requests=_said(said.requests_left, said.requests_limit, said.requests_reset_ms, now_ms)
        or record.requests,
        tokens=_said(said.tokens_left, said.tokens_limit, said.tokens_reset_ms, now_ms)
        or record.tokens,
    )


def _said(left: int, limit: int, reset_ms: int, now_ms: int) -> Said | None:
    if left < 0 or limit <= 0:
        return None
    reset_ms = min(max(0, reset_ms), HELD_MS_MAX)
    return Said(left, limit, now_ms, now_ms + reset_ms, reset_ms / max(1, limit - left))


def held(record: ProviderRecord, wait_ms: int, why: str, now_ms: int) -> ProviderRecord:
    """Let nobody call for a time: the longest that was asked for counts."""
    until_ms = now_ms + min(max(1, wait_ms), HELD_MS_MAX)
    if until_ms <= record.held_until_ms:
        return record
    return msgspec.structs.replace(record, held_until_ms=until_ms, held_by=why)
