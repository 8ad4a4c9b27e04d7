"""What is kept of a step that waits for a published event: a key in a bucket, while it waits."""

from __future__ import annotations

import msgspec


class Given(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a match may ask for besides the event."""

    input: msgspec.Raw = msgspec.Raw(b"null")
    steps: dict[str, msgspec.Raw] = {}


class Waiter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A step that waits for an event. It is a hint to look at the step: its run decides."""

    run: str
    step: str
    domain: str
    event: str
    match: str = ""
    request: int
    """Sequence of the run's request: an id may be used again after its run has gone."""
    since_ms: int
    """When the run was requested: events that were published before are none of its own."""
    used: tuple[int, ...] = ()
    """Sequences of events that steps before it have waited for and got."""
    given: Given | None = None
    """None if the match asks for nothing, or for too much to keep here."""
    is_referred: bool = False
    """What the match asks for has to be read where it is stored."""


class IndexedPath(msgspec.Struct, frozen=True):
    """A place in events of one name by whose value steps wait."""

    path: tuple[str | int, ...]
