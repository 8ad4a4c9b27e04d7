"""Lanes: a name that runs share, so that one of them, or a few, are active at a time.

A lane is no object of its own. It is the requests that name it, in the order in which the events
stream stores them: ``docs/lanes.md`` says what follows from that.
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

import msgspec

from treadle.sdk.errors import UserError

LANE_CHARS_MAX = 200
"""A name for one line of a list; what it names may be long, such as an address or two ids."""
_SHOWN_CHARS_MAX = 60
_KEY_CHARS = 32
"""Hexadecimal digits, 128 bits: no two names meet by chance."""


class Place(NamedTuple):
    """A request of a lane, or the event with which a scheduled run has entered it."""

    sequence: int
    run: str
    request: int = 0
    """Of a run that has entered: the sequence of its request; 0 is a request itself."""


class LaneRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is kept of a lane: how far it has come. A hint, never what decides.

    It spares a look at the requests that are over, and tells the sweep which lanes to look after.
    """

    lane: str
    after: int = 0
    """Every request of the lane up to this sequence of the events stream is over, but those in
    ``under_way``."""
    under_way: tuple[Place, ...] = ()
    """Requests up to ``after`` that may not be over, in their order. In a lane of one place there
    are none."""
    waiting: bool = False
    """Behind it was one that is not."""


class Ahead(msgspec.Struct, frozen=True):
    """What stands before a queued run."""

    count: int = 0
    """Earlier runs of its lane that have not ended."""
    is_more: bool = False
    """There are more than were counted."""
    holder: str = ""
    """The first of them that is active; empty if none is yet."""
    several: tuple[str, ...] = ()
    """All of them that are active, if they are several; empty in a listing."""
    places: int = 1
    """It begins when fewer than so many are before it."""

    @property
    def holders(self) -> tuple[str, ...]:
        """The active ones, as far as they are known."""
        return self.several or ((self.holder,) if self.holder else ())


def check_lane(lane: object) -> str:
    """Return the text if it may name a lane; raise ``UserError`` otherwise."""
    if isinstance(lane, str) and 0 < len(lane) <= LANE_CHARS_MAX and lane.isprintable():
        return lane
    shown = repr(lane)
    if len(shown) > _SHOWN_CHARS_MAX:
        shown = f"{shown[:_SHOWN_CHARS_MAX]}… ({len(str(lane))} characters)"
    raise UserError(
        f"lane {shown} is not a valid name of a lane: 1 to {LANE_CHARS_MAX} printable characters "
        "are allowed, because it stands in lists and logs. Choose a name such as "
        "'conversation:42'."
    )


def lane_key(lane: str) -> str:
    """Return the part of subjects and keys that stands for a lane; empty for no lane."""
    return hashlib.sha256(lane.encode()).hexdigest()[:_KEY_CHARS] if lane else ""
