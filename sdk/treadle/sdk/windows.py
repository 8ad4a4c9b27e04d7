"""Which collected starts become a run together, given what is stored of them. Pure.

    start 4  start 7  start 9        start 12
    |---------------------|  due     |------
         one window                  the next one

A window is a function of the stored times and sizes alone: however late an engine looks, and
whichever it is, it comes to the same one. It ends before the first start that was stored after it
was due, that is of another version of the workflow, or that a batch has no room for.
"""

from __future__ import annotations

from typing import NamedTuple, assert_never

import msgspec
from msgspec.structs import replace

from treadle.sdk.collecting import Batch, Collect, Debounce
from treadle.sdk.payload import PAYLOAD_BYTES_MAX

BRACKETS_BYTES = 2


class Member(NamedTuple):
    """A stored start, as far as windows depend on it."""

    sequence: int
    time_ms: int
    size_bytes: int
    """Of its input."""
    version: str


class Window(msgspec.Struct, frozen=True):
    """The starts of a key that become the next run."""

    version: str
    first: int
    first_ms: int
    last: int
    last_ms: int
    count: int
    size_bytes: int
    """Of their list."""
    is_closed: bool
    """Nothing can be added any more: the run begins at once."""


def extended(rule: Collect, window: Window | None, member: Member) -> Window:
    """Return the window with the next start behind it; closed and without it if it ends there."""
    if window is None:
        size_bytes = BRACKETS_BYTES + member.size_bytes
        one = Window(
            member.version,
            *(member.sequence, member.time_ms, member.sequence, member.time_ms),
            *(1, size_bytes, False),
        )
        return replace(one, is_closed=_is_full(rule, one))
    if window.is_closed or not _takes(rule, window, member):
        return replace(window, is_closed=True)
    grown = replace(
        window,
        last=member.sequence,
        # Another leader's clock may be behind.
        last_ms=max(window.last_ms, member.time_ms),
        count=window.count + 1,
        size_bytes=window.size_bytes + 1 + member.size_bytes,
    )
    return replace(grown, is_closed=_is_full(rule, grown))


def due_ms(rule: Collect, window: Window) -> int:
    """Return the time until which starts belong to the window, if nothing closes it before."""
    latest_ms = window.first_ms + _ms(rule.max_wait_s)
    match rule:
        case Debounce():
            return min(latest_ms, window.last_ms + _ms(rule.period_s))
        case Batch():
            return latest_ms
        case _:
            assert_never(rule)


def is_due(rule: Collect, window: Window, now_ms: int) -> bool:
    """Return whether the run of the window begins now."""
    return window.is_closed or now_ms > due_ms(rule, window)


def _takes(rule: Collect, window: Window, member: Member) -> bool:
    if member.version != window.version or member.time_ms > due_ms(rule, window):
        return False
    if isinstance(rule, Debounce):
        return True
    return window.size_bytes + 1 + member.size_bytes <= PAYLOAD_BYTES_MAX


def _is_full(rule: Collect, window: Window) -> bool:
    return isinstance(rule, Batch) and window.count >= rule.max_size


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
