"""Times of day and durations, as text and as minutes."""

import re

MINUTES_PER_DAY = 24 * 60

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})")
_DURATION = re.compile(r"(?:(\d+)h)?(?:(\d+)m)?")


def parse_clock(text: str) -> int:
    """Return the minute of the day of a text such as ``9:30``; ``24:00`` is its end."""
    match = _CLOCK.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"{text!r} is not a time of day")
    hours, minutes = int(match[1]), int(match[2])
    if minutes > 59 or hours * 60 + minutes > MINUTES_PER_DAY:
        raise ValueError(f"{text!r} is not a time of day")
    return hours * 60 + minutes


def format_clock(minute: int) -> str:
    """Return a minute of the day as ``HH:MM``."""
    return f"{minute // 60:02}:{minute % 60}"


def parse_duration(text: str) -> int:
    """Return the minutes of a text such as ``90m``, ``2h`` or ``1h30m``."""
    match = _DURATION.fullmatch(text.strip())
    if match is None or not match[0]:
        raise ValueError(f"{text!r} is not a duration")
    return int(match[1] or 0) * 60 + int(match[2] or 0)


def format_duration(minutes: int) -> str:
    """Return minutes as ``45m``, ``2h`` or ``1h30m``."""
    hours, rest = divmod(minutes, 60)
    if not hours:
        return f"{rest}m"
    return f"{hours}h{rest}m" if rest else f"{hours}h"
