"""Effects that must not happen twice, told to a test that counts them. Otherwise nobody listens."""

from __future__ import annotations

from collections.abc import Callable

observer: Callable[[str], None] | None = None
"""Whom to tell; of this process, since a simulation is alone in it."""


def happened(key: str) -> None:
    """Say that an effect happens now: money moves, a mail is sent. ``key`` is which one.

    For the doubles of a test, which stand for what a handler calls: under ``crash_everywhere`` a
    second effect of one key is a failure. Anywhere else it does nothing.
    """
    if observer is not None:
        observer(key)
