"""When a run is to begin, as whoever starts it says it.

A time is asked for by the clock of whoever starts the run, a delay by the server's: it counts from
when the request is stored.
"""

from __future__ import annotations

import time
from datetime import datetime, timedelta
from typing import cast

from treadle.sdk.beginning import AT_ONCE, When
from treadle.sdk.errors import UserError
from treadle.sdk.limits import DURATION_S_MAX
from treadle.sdk.rfc3339 import moment_ms
from treadle.sdk.times import date

_YEARS = "ten years"


def when(
    start_at: datetime | str | None = None, start_after: timedelta | float | None = None
) -> When:
    """Return when a run is to begin; raise ``UserError`` if that is no time, or too far off."""
    if start_at is not None and start_after is not None:
        raise UserError("a run begins at a time or after a delay, and both were given. Give one.")
    if start_at is not None:
        return When(at_ms=_at_ms(start_at))
    return AT_ONCE if start_after is None else When(after_ms=_after_ms(start_after))


def begins_text(begins: When) -> str:
    """Return in words when a run is to begin."""
    if begins.at_ms:
        return f"at {date(begins.at_ms)}"
    return f"{begins.after_ms / 1000:g} s after its request" if begins.after_ms else "at once"


def _at_ms(value: datetime | str) -> int:
    if not isinstance(cast("object", value), str | datetime):
        raise UserError(f"start_at is {value!r}, and has to be a datetime, or a text of a time.")
    if isinstance(value, str):
        at_ms = moment_ms(value)
        if at_ms is None:
            raise UserError(
                f"{value!r} is not a time with its offset. Write it like 2027-01-31T09:00:00+01:00."
            )
    elif value.tzinfo is None:
        raise UserError(
            f"{value!r} has no time zone, so it is another time elsewhere. Give it one: "
            "datetime(2027, 1, 31, 9, tzinfo=UTC), or ZoneInfo('Europe/Berlin')."
        )
    else:
        at_ms = round(value.timestamp() * 1000)
    if at_ms > time.time() * 1000 + DURATION_S_MAX * 1000:
        raise UserError(
            f"a run cannot begin at {value}: the longest that it can wait is {_YEARS}. Give an "
            "earlier time."
        )
    # A time that has passed is one to begin at once, however long ago.
    return max(1, at_ms)


def _after_ms(value: timedelta | float) -> int:
    delay_s = value.total_seconds() if isinstance(value, timedelta) else value
    if isinstance(delay_s, bool) or not isinstance(cast("object", delay_s), int | float):
        raise UserError(f"start_after is {value!r}, and has to be seconds, or a timedelta.")
    if not 0 <= delay_s <= DURATION_S_MAX:
        raise UserError(
            f"a run cannot begin {delay_s:g} s after its request: a delay is from 0 to {_YEARS}. "
            "Give another, or start_at=..."
        )
    return round(delay_s * 1000)
