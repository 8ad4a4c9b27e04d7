"""What an id may hold: pure, so that the core can ask it too."""

from __future__ import annotations

import re

ID_CHARS_MAX = 64
_ID = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,63}\Z")


def is_id(text: object) -> bool:
    """True when the text may be a run id, step id, task type, workflow or signal name."""
    return isinstance(text, str) and _ID.match(text) is not None
