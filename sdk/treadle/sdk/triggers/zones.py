"""Time zones by their IANA names, and the instants at which their offset changes; pure."""

from __future__ import annotations

import zoneinfo
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

from treadle.sdk.errors import UserError
from treadle.sdk.wording import Suggestions, shown

_OF_A_MACHINE = ("localtime", "posixrules", "Factory", "posix/", "right/")
"""Files beside the database that mean something else on each machine."""
_STEP = timedelta(days=1)
"""No zone changes its offset twice within it, and is back at the first one."""


@lru_cache(maxsize=256)
def zone_of(name: str) -> ZoneInfo:
    """Return the zone; raise ``UserError`` with the nearest name if there is none."""
    try:
        if not name.startswith(_OF_A_MACHINE):
            return ZoneInfo(name)
    except (KeyError, ValueError, OSError):
        pass
    nearest = _nearest(name)
    meant = f"Did you mean {nearest!r}? " if nearest else ""
    raise UserError(
        f"time zone {shown(name)} is not known: the IANA time zone database has no such name. "
        f"{meant}Give a name such as Europe/Berlin, America/New_York or UTC."
    )


def wall(at: datetime, zone: ZoneInfo) -> datetime:
    """Return what the clocks of a zone show at an instant, without a zone."""
    return at.astimezone(zone).replace(tzinfo=None)


def change(zone: ZoneInfo, start: datetime, end: datetime) -> datetime | None:
    """Return the first instant after ``start`` and up to ``end`` with another offset than it."""
    offset = start.astimezone(zone).utcoffset()
    low = start
    while low < end:
        high = min(low + _STEP, end)
        if high.astimezone(zone).utcoffset() != offset:
            return _bisected(zone, low, high)
        low = high
    return None


def _bisected(zone: ZoneInfo, low: datetime, high: datetime) -> datetime:
    offset = low.astimezone(zone).utcoffset()
    first, last = int(low.timestamp()), int(high.timestamp())
    while last - first > 1:
        middle = (first + last) // 2
        if datetime.fromtimestamp(middle, UTC).astimezone(zone).utcoffset() == offset:
            first = middle
        else:
            last = middle
    return datetime.fromtimestamp(last, UTC)


def _nearest(name: str) -> str:
    known = zoneinfo.available_timezones()
    names = sorted((each for each in known if not each.startswith(_OF_A_MACHINE)), key=len)
    city = name.replace(" ", "_").lower()
    same = (each for each in names if city in (each.lower(), each.lower().rpartition("/")[2]))
    return next(same, "") or Suggestions().nearest(name, names)
