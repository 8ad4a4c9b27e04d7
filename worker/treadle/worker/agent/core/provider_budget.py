"""What workers may ask of a model's provider together: pure functions over one shared record.

    budget    a bucket for requests and one for tokens: full, each lets a minute's worth through at
              once, and it fills evenly. Stored is when it will be full again, so a reservation
              that nobody corrects (its worker was killed) is over within its minute
    said      what the provider said last is left, and when it is all there again
    held      until then nobody calls: a 429
    line      who waits, first to last: a call is made when there is room for it, and for all
              before it

Times are milliseconds since the epoch. What a record says of the past means nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from treadle.sdk.messages import ProviderRecord, ProviderSaid, ProviderWaiter
from treadle.sdk.provider_buckets import MINUTE_MS, forecast, gap_ms, lowest, reserved_by
from treadle.worker.agent.core.conversation import RateLimits

HELD_MS_MAX = 24 * 3600 * 1000
"""A day: a provider may say anything."""
LINE_MS_MAX = 60 * MINUTE_MS
"""Whoever is not called for this long looks by itself: whoever should have called may be dead."""
AGAIN_MS = 2_000
"""After this, whoever was called and still sleeps is called again."""
GRACE_MS = 10_000
"""Whoever was called, and is neither asleep nor here after this, is waited for no longer."""
LATE_MS = 500
"""By more than this must a wait be too long for the waiter to be told."""


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


class Admission(NamedTuple):
    """Whether a call may be made now."""

    record: ProviderRecord
    """As it stands with the call, or with who waits."""
    wait_ms: int
    """0: it may. Else how long until it is worth asking again, if nobody calls before."""
    why: str = ""


class Calls(NamedTuple):
    """Who in a line is to come and look."""

    record: ProviderRecord
    """As it stands with them."""
    called: tuple[tuple[ProviderWaiter, float], ...] = ()
    """With when each may make its call; a waiter that knows it, or is on its way, needs no word."""


# ---------------------------------------------------------------- who is let in when


def admit(
    record: ProviderRecord,
    budget: ProviderBudget,
    tokens: int,
    now_ms: int,
    before: Sequence[int] = (),
    *,
    are_more: bool = False,
) -> Admission:
    """Reserve a call of so many tokens, or say how long to wait.

    ``before`` are the tokens of those who come first, in order; ``are_more`` says that they are
    not all.
    """
    (*_, own_ms), why = forecast(record, budget, [*before, tokens], now_ms)
    if own_ms <= now_ms and not are_more:
        return Admission(reserved_by(record, budget, tokens, now_ms), 0)
    come_ms = own_ms
    if are_more:
        come_ms = max(own_ms, record.line_ms) + max(gap_ms(budget, tokens), 1.0)
        come_ms = min(come_ms, max(own_ms, now_ms + LINE_MS_MAX))
    waiting = msgspec.structs.replace(record, line_ms=max(record.line_ms, come_ms))
    if own_ms <= now_ms or not why:
        why = f"others wait for the budget of {record.name} before it"
    return Admission(waiting, max(1, round(come_ms - now_ms)), why)


def calls(
    record: ProviderRecord,
    budget: ProviderBudget,
    line: Sequence[ProviderWaiter],
    now_ms: int,
    asking: str = "",
    again_ms: int = AGAIN_MS,
) -> Calls:
    """Return who of the first in line has its turn now, and the one that is next after them.

    ``asking`` is the place of who does the looking, and need not be called. Whoever was called is
    called again after ``again_ms``.
    """
    if not line:
        return Calls(record)
    times, _ = forecast(record, budget, [each.tokens for each in line], now_ms)
    known = {each.place: record.called[each.place] for each in line if each.place in record.called}
    marks, found = dict(known), list[tuple[ProviderWaiter, float]]()
    for waiter, at_ms in zip(line, times, strict=True):
        called_ms = known.get(waiter.place, 0)
        if waiter.place != asking and now_ms - called_ms >= again_ms:
            found.append((waiter, at_ms))
            # Whoever only has to know its time anew may be told another one at once.
            marks[waiter.place] = called_ms or (now_ms if at_ms <= now_ms else 0)
        if at_ms > now_ms:
            break
    if marks == record.called:
        return Calls(record, tuple(found))
    return Calls(msgspec.structs.replace(record, called=marks), tuple(found))


def answered(record: ProviderRecord, place: str) -> ProviderRecord:
    """Return the record without the call of somebody who came."""
    if place not in record.called:
        return record
    left = {each: at for each, at in record.called.items() if each != place}
    return msgspec.structs.replace(record, called=left)


def unlined(record: ProviderRecord) -> ProviderRecord:
    """Return the record of a provider that nobody waits for."""
    return msgspec.structs.replace(record, is_waited_for=False, called={}, line_ms=0)


def is_overdue(record: ProviderRecord, place: str, now_ms: int) -> bool:
    """True if somebody was called so long ago that nobody waits for it any more."""
    return now_ms - (record.called.get(place) or now_ms) > GRACE_MS


# ---------------------------------------------------------------- what a call has shown


class Reservation(NamedTuple):
    """What a call has reserved."""

    tokens: int
    number: int


def reservation(record: ProviderRecord, tokens: int) -> Reservation:
    """Return what a call has reserved, given the record as it stood with it."""
    return Reservation(tokens, record.number)


def corrected(
    record: ProviderRecord, budget: ProviderBudget, reserved: Reservation, used: int, now_ms: int
) -> ProviderRecord:
    """Replace the tokens that were reserved by those that were used.

    What has come back by itself meanwhile is not given back once more: a bucket that was full
    since knows nothing of a call before that.
    """
    left = max(0, record.reserved_tokens - reserved.tokens)
    if left != record.reserved_tokens:
        record = msgspec.structs.replace(record, reserved_tokens=left)
    if not budget.tokens_per_minute or reserved.tokens == used:
        return record
    more_ms = (used - reserved.tokens) * MINUTE_MS / budget.tokens_per_minute
    if more_ms > 0:
        full_ms = max(record.tokens_full_ms, now_ms) + more_ms
        return msgspec.structs.replace(record, tokens_full_ms=full_ms)
    since = [low for number, low in record.lows if number > reserved.number]
    credit_ms = min(-more_ms, *since, record.tokens_full_ms - now_ms)
    if credit_ms <= 0:
        return record
    lows = tuple(
        (number, low - credit_ms if number > reserved.number else low)
        for number, low in record.lows
    )
    return msgspec.structs.replace(
        record, tokens_full_ms=record.tokens_full_ms - credit_ms, lows=lowest(lows)
    )


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


def _said(left: int, limit: int, reset_ms: int, now_ms: int) -> ProviderSaid | None:
    if left < 0 or limit <= 0:
        return None
    reset_ms = min(max(0, reset_ms), HELD_MS_MAX)
    return ProviderSaid(left, limit, now_ms, now_ms + reset_ms, reset_ms / max(1, limit - left))


def held(record: ProviderRecord, wait_ms: int, why: str, now_ms: int) -> ProviderRecord:
    """Let nobody call for a time: the longest that was asked for counts."""
    until_ms = now_ms + min(max(1, wait_ms), HELD_MS_MAX)
    if until_ms <= record.held_until_ms:
        return record
    return msgspec.structs.replace(record, held_until_ms=until_ms, held_by=why)
