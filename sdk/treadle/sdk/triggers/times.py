"""When a cron trigger fires and a sleep by cron ends: pure functions of expression, zone, instant.

The calendar and its notation are cronsim's, which is asked for local times without a zone only.
What a local time means where clocks are changed is decided here:

    a schedule with a fixed minute and hour   each local time is one firing: of one that comes
                                              twice the first, of one that does not exist the
                                              instant at which the clocks go forward
    any other schedule                        each instant at which the clocks show it: nothing
                                              for what they pass over, twice for what they repeat
"""

from __future__ import annotations

import copy
import re
from collections import deque
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Protocol
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from treadle.sdk.errors import UserError
from treadle.sdk.triggers.zones import change, wall, zone_of
from treadle.sdk.wording import shown

EXPRESSION_CHARS_MAX = 200
UTC_NAME = "UTC"
EVERY_S_MAX = 366 * 24 * 3600
MACROS = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
FIELDS = {
    "minute": "0 to 59",
    "hour": "0 to 23",
    "day-of-month": "1 to 31, L or LW",
    "month": "1 to 12 or jan to dec",
    "day-of-week": "0 to 7 or sun to sat, where 0 and 7 are Sunday, also MON#2 and 5L",
}
_EVERY = re.compile(r"@every\s+(?:(\d{1,3})d)?(?:(\d{1,4})h)?(?:(\d{1,6})m)?(?:(\d{1,8})s)?\Z")
_UNITS_S = (86_400, 3_600, 60, 1)
_SECOND = timedelta(seconds=1)
_YEAR_2000 = datetime(2000, 1, 1)
_WINDOW_MS = 60_000


class Times(Protocol):
    """The instants at which a trigger fires, in milliseconds since the epoch."""

    def after(self, at_ms: int) -> int:
        """Return the first one later than ``at_ms``; 0 if there is none."""
        ...


class Firings:
    """The firings of a trigger, in milliseconds since the epoch."""

    def __init__(self, times: Times) -> None:
        self.after = times.after

    def upcoming(self, at_ms: int, count: int) -> tuple[int, ...]:
        """Return the first firings later than ``at_ms``, at most so many."""
        found: list[int] = []
        while len(found) < count and (at_ms := self.after(at_ms)):
            found.append(at_ms)
        return tuple(found)

    def newest(self, first_ms: int, to_ms: int, count: int) -> tuple[int, ...]:
        """Return the newest firings up to ``to_ms``, at most so many, the oldest first.

        ``first_ms`` is a firing itself, and the first one that counts.
        """
        width_ms = _WINDOW_MS
        while True:
            start = max(first_ms, to_ms - width_ms)
            found = deque[int](maxlen=count)
            if start == first_ms:
                found.append(first_ms)
            at = start
            while 0 < (at := self.after(at)) <= to_ms:
                found.append(at)
            if start == first_ms or len(found) == count:
                return tuple(found)
            width_ms *= 2


class Every:
    """Fires at the multiples of an interval since the epoch, whatever the clocks show."""

    def __init__(self, interval_s: int) -> None:
        self._interval_ms = interval_s * 1_000

    def after(self, at_ms: int) -> int:
        """See ``Times``."""
        return (at_ms // self._interval_ms + 1) * self._interval_ms


class Calendar:
    """Fires when the clocks of a zone show what five fields say."""

    def __init__(self, fields: list[str], zone: ZoneInfo) -> None:
        # Raises CronSimError; without a zone, so that the library knows no changes of clocks.
        self._matching = CronSim(" ".join(fields), _YEAR_2000)
        self._zone = zone
        self._is_fixed = not (fields[0].startswith("*") or fields[1].startswith("*"))

    @property
    def ever(self) -> bool:
        """False if no date is as the fields say, such as 30 February."""
        return self._next(_YEAR_2000) is not None

    def after(self, at_ms: int) -> int:
        """See ``Times``."""
        at = datetime.fromtimestamp(at_ms // 1_000, UTC)
        found = self._fixed(at) if self._is_fixed else self._shown(at)
        return 0 if found is None else int(found.timestamp()) * 1_000

    def _next(self, local: datetime) -> datetime | None:
        matching = copy.copy(self._matching)
        matching.dt = local
        return next(matching, None)

    def _shown(self, at: datetime) -> datetime | None:
        """Return the next instant at which the clocks show a matching time."""
        local = wall(at, self._zone)
        while (found := self._next(local)) is not None:
            # While the clocks are not changed, they are as far from UTC as they are now.
            offset = wall(at, self._zone) - at.replace(tzinfo=None)
            end = (found - offset).replace(tzinfo=UTC)
            changed = change(self._zone, at, end)
            if changed is None:
                return end
            at = changed
            local = wall(at, self._zone) - _SECOND
        return None

    def _fixed(self, at: datetime) -> datetime | None:
        """Return the next instant that stands for a matching local time."""
        local = self._next(wall(at, self._zone))
        # What the clocks show a second time was fired at the first.
        while local is not None and self._instant(local) <= at:
            local = self._next(local)
        return None if local is None else self._instant(local)

    def _instant(self, local: datetime) -> datetime:
        # In a gap fold 0 counts by the offset before it, and so comes out behind the change.
        late = local.replace(tzinfo=self._zone, fold=0).astimezone(UTC)
        if wall(late, self._zone) == local:
            return late
        early = local.replace(tzinfo=self._zone, fold=1).astimezone(UTC)
        return change(self._zone, early, late) or late


@lru_cache(maxsize=1_024)
def firings_of(expression: str, zone: str = UTC_NAME) -> Firings:
    """Return the firings of a cron expression in a time zone.

    Raise ``UserError`` that names the field which is wrong, or the zone.
    """
    if len(expression) > EXPRESSION_CHARS_MAX:
        raise UserError(
            f"cron expression {shown(expression)} has {len(expression)} characters, and "
            f"{EXPRESSION_CHARS_MAX} are allowed. Shorten it."
        )
    info = zone_of(zone)
    text = expression.strip().lower()
    if text.startswith("@every"):
        return Firings(_every(expression, text))
    if text.startswith("@"):
        if text not in MACROS:
            raise UserError(
                f"cron expression {expression!r} is not known: of the names with @ there are "
                f"{', '.join(MACROS)} and `@every 30s`. Write one of them, or five fields."
            )
        text = MACROS[text]
    return Firings(_calendar(expression, text.split(), info))


def next_after(expression: str, zone: str, after_ms: int) -> int:
    """Return the first firing later than ``after_ms``, in milliseconds; 0 if there is none."""
    return firings_of(expression, zone).after(after_ms)


def _calendar(expression: str, fields: list[str], zone: ZoneInfo) -> Calendar:
    if len(fields) != len(FIELDS):
        raise UserError(
            f"cron expression {expression!r} has {len(fields)} fields, and five are wanted: "
            f"{', '.join(FIELDS)}. Write them with a space between, such as '0 9 * * mon-fri'."
        )
    try:
        calendar = Calendar(fields, zone)
    except CronSimError as exc:
        raise UserError(_why(expression, fields, str(exc))) from exc
    if not calendar.ever:
        raise UserError(_never(expression))
    return calendar


def _why(expression: str, fields: list[str], told: str) -> str:
    name = told.removeprefix("Bad ")
    value = dict(zip(FIELDS, fields, strict=True)).get(name, "")
    # The one complaint about a field that is well by itself: no month has such a day.
    if name == "day-of-month" and _is_alone_well(value):
        return _never(expression)
    return (
        f"cron expression {expression!r}: the {name} field {value!r} is wrong, because it holds "
        f"{FIELDS.get(name, 'something else')}, as *, lists (1,15), ranges (1-5) and steps "
        f"(*/10). Correct the {name} field."
    )


def _is_alone_well(day: str) -> bool:
    try:
        CronSim(f"0 0 {day} 1 *", _YEAR_2000)
    except CronSimError:
        return False
    return True


def _never(expression: str) -> str:
    return (
        f"cron expression {expression!r} never fires: no month that it names has such a day. "
        "Correct the day-of-month or the month field."
    )


def _every(expression: str, text: str) -> Every:
    match = _EVERY.match(text)
    parts = match.groups(default="0") if match else ()
    interval_s = sum(int(n) * unit for n, unit in zip(parts, _UNITS_S, strict=False))
    if not 1 <= interval_s <= EVERY_S_MAX:
        raise UserError(
            f"cron expression {expression!r}: what follows @every is no interval of one second to "
            "366 days. Write it in days, hours, minutes and seconds, such as `@every 1h30m`."
        )
    return Every(interval_s)
