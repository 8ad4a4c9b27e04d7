"""What is due of a trigger, given the time: which firings start runs, and which are left out."""

from __future__ import annotations

from typing import Protocol

from msgspec.structs import replace

from treadle.sdk.triggers.trigger import Cron, Trigger

ON_TIME_MS = 60_000
"""A firing that is handled within it was not missed: restarts take seconds."""
CAUGHT_UP_MAX = 100
"""Firings that ``all`` makes up for at most, the newest: an hour and a half of minutes."""


class Firings(Protocol):
    """When a trigger fires, in milliseconds since the epoch."""

    def after(self, at_ms: int) -> int:
        """Return the first firing later than ``at_ms``; 0 if there is none."""
        ...

    def newest(self, first_ms: int, to_ms: int, count: int) -> tuple[int, ...]:
        """Return the newest firings from one of them up to ``to_ms``, the oldest first."""
        ...


def decide(trigger: Trigger, firings: Firings, changed_ms: int, now_ms: int) -> Trigger:
    """Return a cron trigger with what is due at ``now_ms``, the same object if nothing is new.

    ``changed_ms`` is when the trigger was stored: with ``next_ms`` 0 its firings begin there.
    """
    assert isinstance(trigger.on, Cron)
    if trigger.paused:
        return trigger
    first_ms = trigger.next_ms or firings.after(changed_ms)
    if trigger.due or first_ms > now_ms or not first_ms:
        return trigger if first_ms == trigger.next_ms else replace(trigger, next_ms=first_ms)
    kept_max = CAUGHT_UP_MAX if trigger.on.catch_up == "all" else 1
    found = firings.newest(first_ms, now_ms, kept_max + 1)
    kept = found[-kept_max:]
    if trigger.on.catch_up == "skip" and now_ms - kept[0] > ON_TIME_MS:
        kept = ()
    left_out = found[: len(found) - len(kept)]
    trigger = replace(trigger, due=kept, next_ms=firings.after(now_ms))
    if left_out:
        trigger = replace(trigger, missed_from_ms=first_ms, missed_to_ms=left_out[-1])
    return trigger


def requested(trigger: Trigger, failure: str) -> Trigger:
    """Return the trigger after its due firings were handled; ``failure`` is why one was not."""
    newest_ms = trigger.due[-1]
    if failure:
        return replace(trigger, due=(), failed_ms=newest_ms, failure=failure)
    return replace(trigger, due=(), fired_ms=newest_ms)
