"""Fields of a log record as a person reads them on its line."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import cast


def spaced(fields: Mapping[str, object]) -> str:
    """Return ``name=value`` for each field; a value with spaces in it stands in quotes."""
    return " ".join(f"{name}={_shown(value)}" for name, value in fields.items())


def _shown(value: object) -> str:
    if isinstance(value, list | tuple):
        return ",".join(_shown(each) for each in cast("list[object]", value))
    text = str(value)
    needs_quotes = not text or any(char.isspace() or char in '"=' for char in text)
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
