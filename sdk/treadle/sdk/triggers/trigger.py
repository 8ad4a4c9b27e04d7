"""What is stored of a trigger: one value by name, changed by compare-and-set only.

Clients write what is asked for, engines how far it has come; each leaves the part of the other
as it is. Data only: names and ids are in ``naming.py``, times in ``times.py``.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.messages import NO_RAW

CatchUp = Literal["skip", "last", "all"]
"""What becomes of firings that nobody was there to handle: none, the newest, or each of them."""


class Cron(msgspec.Struct, frozen=True, tag="cron", tag_field="kind"):
    """Fires at times: five fields or ``@daily`` and the like, read in a time zone."""

    expression: str
    zone: str = "UTC"
    """IANA name, such as ``Europe/Berlin``."""
    catch_up: CatchUp = "skip"


class Subject(msgspec.Struct, frozen=True, tag="subject", tag_field="kind", omit_defaults=True):
    """Fires at each message on a NATS subject; the message, as JSON, is the input of the run."""

    subject: str
    """It may have wildcards: ``orders.*``, ``orders.>``."""
    max_in_flight: int = 0
    """Runs of it that are under way at once; further messages wait in their stream. 0 is any."""


On = Cron | Subject
"""What a trigger fires at: its kind."""


class Source(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Where the messages of a subject trigger are: a stream, and the trigger's consumer of it."""

    stream: str
    consumer: str
    first: int = 0
    """Sequence from which its messages count; 0 is all that the stream holds."""
    is_captured: bool = False
    """The stream was made for triggers, because none held the subject."""


class Trigger(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A trigger as it stands. Another kind of ``on`` is another kind of trigger."""

    on: On
    workflow: str
    version: str = ""
    """Content hash of the version that its runs take; empty is the newest one at the firing."""
    input: msgspec.Raw = NO_RAW
    metadata: dict[str, str] = {}
    lane: str = ""
    paused: bool = False
    next_ms: int = 0
    """The firing that is waited for; 0 is the first one after this value was stored, or none of
    a paused one."""
    due: tuple[int, ...] = ()
    """Firings whose runs are to be requested now, the oldest first."""
    fired_ms: int = 0
    """The newest firing whose run was requested; 0 is none."""
    missed_from_ms: int = 0
    """Of the firings that were last left out, the oldest; 0 is none."""
    missed_to_ms: int = 0
    """Of these, the newest."""
    failed_ms: int = 0
    """The newest firing that could not start its run; 0 is none."""
    failure: str = ""
    """Why it could not."""
    source: Source | None = None
    """Of a subject trigger: where its messages are."""
    dropped: tuple[Source, ...] = ()
    """Sources it had before: engines remove what they have left, and then this."""
    deleted: bool = False
    """It is to go: engines remove what it has left, and then the value."""
    write: str = ""
    """Nonce of the write: recognises a compare-and-set whose acknowledgement was lost."""


class TriggerDue(msgspec.Struct, frozen=True, tag="trigger.due", tag_field="event"):
    """A trigger's schedule fired. It is a hint: what is due is read from the trigger."""

    trigger: str
    due_ms: int
