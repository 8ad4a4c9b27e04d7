"""Secrets of triggers: read where the trigger says they are, each time they are needed."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

SECRET_BYTES_MAX = 64 * 1024


class SecretMissing(Exception):
    """There is no secret where it should be; the text is for the operator, not for a caller."""


def secrets_at(place: str, environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the secrets at ``env:NAME`` or ``file:/PATH``: several have white space between.

    Raise ``SecretMissing`` if there is none.
    """
    kind, _, name = place.partition(":")
    if kind == "env":
        text = environment.get(name, "")
    else:
        try:
            with Path(name).open(encoding="utf-8") as file:
                text = file.read(SECRET_BYTES_MAX)
        except (OSError, UnicodeDecodeError) as exc:
            raise SecretMissing(f"{place} cannot be read: {exc}") from exc
    found = tuple(text.split())
    if not found:
        raise SecretMissing(f"{place} is empty or not set")
    return found
