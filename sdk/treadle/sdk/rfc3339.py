"""Times as RFC 3339 writes them. Pure: a text is read, and no clock."""

from __future__ import annotations

from datetime import datetime


def moment_ms(text: str) -> int | None:
    """Return a time as RFC 3339 has it in ms since the epoch; None if it is none."""
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return None if at.tzinfo is None else round(at.timestamp() * 1000)
