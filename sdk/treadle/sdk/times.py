"""Moments and durations as a person reads them; pure."""

from __future__ import annotations

from datetime import UTC, datetime


def age(milliseconds: int) -> str:
    """Return a duration as a person says it: ``350ms``, ``4.2s``, ``2m10s``, ``3h05m``."""
    if milliseconds < 1000:
        return f"{max(milliseconds, 0)}ms"
    seconds = milliseconds // 1000
    if seconds < 60:
        return f"{milliseconds / 1000:.1f}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    hours = seconds // 3600
    return f"{hours}h{seconds % 3600 // 60:02d}m" if hours < 48 else f"{hours // 24}d"


def date(milliseconds: int) -> str:
    """Return a moment in the local time; '' if there is none."""
    if not milliseconds:
        return ""
    at = datetime.fromtimestamp(milliseconds / 1000, UTC).astimezone()
    return f"{at:%Y-%m-%d %H:%M:%S}"


def since(milliseconds: int, now_ms: int) -> str:
    """Return a moment of the past with its age: ``since 2026-02-03 10:00:00, 4.2s``."""
    return f"since {date(milliseconds)}, {age(now_ms - milliseconds)}"


def until(milliseconds: int, now_ms: int) -> str:
    """Return a moment to come with what is left: ``until 2026-02-03 10:00:00, in 4.2s``."""
    left_ms = milliseconds - now_ms
    when = f"in {age(left_ms)}" if left_ms > 0 else f"{age(-left_ms)} ago"
    return f"until {date(milliseconds)}, {when}"
