"""When a loop goes on, as its handler says it: a delay, a time, what people are asked."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime, timedelta

import msgspec

from treadle.sdk import asks as asking
from treadle.sdk.asks import Ask
from treadle.sdk.errors import HandlerError

DELAY_S_MAX = 366 * 24 * 3600.0
"""A year: longer is a mistyped unit."""


def due_ms(step: str, until: datetime | timedelta | None, now_ms: int) -> int:
    """Return when a wait is over, in ms since the epoch; 0 is never by itself."""
    if until is None:
        return 0
    if isinstance(until, timedelta):
        return now_ms + (delay_ms(step, until) if until > timedelta(0) else 0)
    # Typed as a time, but what reaches here at run time is whatever the handler has.
    if not isinstance(until, datetime):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise HandlerError(
            f"step {step!r} waits until {until!r}, which is no time. Give a timedelta from now, or "
            "a datetime with a time zone."
        )
    if until.tzinfo is None:
        raise HandlerError(
            f"step {step!r} waits until {until}, which names no time zone, so it is another time "
            "on another host. Give a datetime with one, such as datetime.now(UTC), or a timedelta."
        )
    return max(1, round(until.timestamp() * 1000))


def asked(step: str, asks: Sequence[Ask], now_ms: int) -> tuple[Ask, ...]:
    """Return what people are asked, in order and bounded; raise ``HandlerError``."""
    try:
        # A handler may build a Struct of anything: what reads the register must be able to.
        asks = msgspec.json.decode(msgspec.json.encode(asks), type=list[Ask])
        found = asking.problems(asks)
    except (TypeError, ValueError, msgspec.MsgspecError) as exc:
        found = [str(exc)]
    if found:
        raise HandlerError(f"step {step!r} cannot ask: {'; '.join(found)}. Correct what it asks.")
    timed = [a if a.asked_ms else msgspec.structs.replace(a, asked_ms=now_ms) for a in asks]
    return asking.bounded(timed)


def delay_ms(step: str, delay: float | timedelta | None) -> int:
    """Return a pause in ms; -1 is the loop's own."""
    if delay is None:
        return -1
    delay_s = delay.total_seconds() if isinstance(delay, timedelta) else float(delay)
    if not math.isfinite(delay_s) or not 0 <= delay_s <= DELAY_S_MAX:
        raise HandlerError(
            f"step {step!r} asks to go on with a delay of {delay_s} s; it must be 0 to "
            f"{DELAY_S_MAX:.0f} s, a year. Give seconds or a timedelta in that range."
        )
    return round(delay_s * 1000)
