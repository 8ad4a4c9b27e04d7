"""Where a trigger stands, for a reader: what is stored of it, and when it fires next. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from treadle.sdk.client.notes import Note
from treadle.sdk.errors import StoredUnreadable
from treadle.sdk.messages import NO_RAW, MetadataValue
from treadle.sdk.times import age, date
from treadle.sdk.triggers.naming import run_id
from treadle.sdk.triggers.times import firings_of
from treadle.sdk.triggers.trigger import Cron, On, Trigger

UPCOMING = 5
OVERDUE_MS = 60_000
"""A firing that stands out for longer is told of: engines handle one within a second."""


class TriggerView(msgspec.Struct, frozen=True, kw_only=True):
    """Where a trigger stands. Times are milliseconds since the epoch."""

    name: str
    on: On
    workflow: str
    version: str = ""
    """Version that its runs take; empty is the newest one at the firing."""
    input: msgspec.Raw = NO_RAW
    metadata: Mapping[str, MetadataValue] = {}
    lane: str = ""
    paused: bool = False
    next_ms: tuple[int, ...] = ()
    """Of a cron trigger the next five firings; none while it is paused."""
    stream: str = ""
    """Of a subject trigger the stream that holds its messages."""
    waiting: int = 0
    """Of a subject trigger how many messages are not done with, if they are counted."""
    fired_ms: int = 0
    """The newest firing that started a run; 0 is none."""
    run: str = ""
    """Id of that run."""
    run_status: str = ""
    """How that run stands; empty if it is not looked up, or its retention has passed."""
    missed_from_ms: int = 0
    """Of the firings that were last left out, the oldest; 0 is none."""
    missed_to_ms: int = 0
    failed_ms: int = 0
    """The newest firing that could not start its run; 0 is none."""
    failure: str = ""
    notes: tuple[Note, ...] = ()
    """What a person should know, and the command that helps."""


def view_of(name: str, trigger: Trigger, changed_ms: int, now_ms: int) -> TriggerView:
    """Return the view of a trigger that was stored at ``changed_ms``."""
    upcoming = _upcoming(trigger, changed_ms)
    return TriggerView(
        name=name,
        on=trigger.on,
        workflow=trigger.workflow,
        version=trigger.version,
        input=trigger.input,
        metadata=trigger.metadata,
        lane=trigger.lane,
        paused=trigger.paused,
        next_ms=upcoming,
        stream=trigger.source.stream if trigger.source else "",
        fired_ms=trigger.fired_ms,
        run=run_id(name, trigger.fired_ms) if trigger.fired_ms else "",
        missed_from_ms=trigger.missed_from_ms,
        missed_to_ms=trigger.missed_to_ms,
        failed_ms=trigger.failed_ms,
        failure=trigger.failure,
        notes=_notes(name, trigger, upcoming, now_ms),
    )


def _upcoming(trigger: Trigger, changed_ms: int) -> tuple[int, ...]:
    on = trigger.on
    if trigger.paused or not isinstance(on, Cron):
        return ()
    firings = firings_of(on.expression, on.zone)
    first_ms = trigger.next_ms or firings.after(changed_ms)
    return (first_ms, *firings.upcoming(first_ms, UPCOMING - 1)) if first_ms else ()


def unreadable(name: str, error: StoredUnreadable) -> TriggerView:
    """Return the view of a trigger that cannot be read: its name, and why."""
    return TriggerView(name=name, on=Cron(""), workflow="", notes=(Note(str(error)),))


def _notes(name: str, trigger: Trigger, upcoming: tuple[int, ...], now_ms: int) -> tuple[Note, ...]:
    found: list[Note] = []
    if trigger.paused:
        resume = f"treadle trigger resume {name}"
        waits = "" if isinstance(trigger.on, Cron) else "; messages wait in their stream"
        found.append(Note(f"it is paused, and starts nothing until it is resumed{waits}", resume))
    elif upcoming and now_ms - upcoming[0] > OVERDUE_MS:
        late = age(now_ms - upcoming[0])
        what = f"its firing of {date(upcoming[0])} stands out since {late}: no engine takes it"
        found.append(Note(what, "treadle engine"))
    if trigger.failed_ms > trigger.fired_ms:
        what = "firing" if isinstance(trigger.on, Cron) else "message"
        text = f"its {what} of {date(trigger.failed_ms)} started no run: {trigger.failure}"
        found.append(Note(text))
    return tuple(found)
