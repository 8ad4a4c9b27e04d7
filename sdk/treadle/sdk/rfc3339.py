"""Times as RFC 3339 writes them. Pure: a text is read, and no clock."""

from __future__ import annotations

from datetime import UTC, datetime

_LAST_MS = 253_402_300_799_999


def written(time_ms: int) -> str:
    """Return a time in ms since the epoch as RFC 3339 has it, in UTC."""
    at = datetime.fromtimestamp(time_ms / 1000, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


def moment_ms(text: str) -> int | None:
    """Return a time as RFC 3339 has it in ms since the epoch; None if it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    if at.tzinfo is None:
        return None
    time_ms = round(at.timestamp() * 1000)
    return time_ms if time_ms <= _LAST_MS else None  # Later, it is no year of four digits in UTC.
