"""What is kept of that which could not be processed."""

from __future__ import annotations

from typing import Literal

import msgspec

from treadle.sdk.children import ParentRun
from treadle.sdk.messages.common import Failure


class DeadLetter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What could not be processed, or a run that failed, with all that is needed to replay it."""

    reason: str
    """``run_failed``, ``corrupt_event``, ``poison_event``, ``unknown_run``; ``unusable_message`` on
    the subject of a trigger."""
    run: str
    workflow: str = ""
    step: str = ""
    failure: Failure | None = None
    parent: ParentRun | None = None
    """The step of another run that started a run that failed."""
    subject: str = ""
    event: str = ""
    """Event id of the message, if one caused this."""
    stream: str = ""
    """Where the original message is stored, until its retention has passed; empty for a run that
    failed."""
    sequence: int = 0
    """Of that message in the stream."""
    headers_base64: str = ""
    """Its block of headers, byte for byte; empty if there were none, or ``body_bytes`` is set."""
    body_base64: str = ""
    """The original message, byte for byte; its beginning if ``body_bytes`` is set."""
    body_bytes: int = 0
    """Size of a message too large for a letter that holds all of it; 0 if this one does."""
    whole_body_at: str = ""
    """Where such a message is stored whole, until the run's retention has passed."""
    at_ms: int = 0


LetterState = Literal["open", "replaying", "replayed", "discarded"]


class LetterMark(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What was done about a dead letter, or is being done.

    A replay is written down before it is made: ``after`` is the newest sequence on the subject, and
    the copy is stored only directly behind it. So whoever finds the mark can tell whether it was.
    """

    state: LetterState
    nonce: str
    """Of this replay, or of this discarding."""
    after: int = 0
    at_ms: int = 0
    """When it was begun."""
    count: int = 1
    """How often the message was replayed, or its run tried again, this time included."""
    stored: int = 0
    """Sequence of the copy."""
    run: str = ""
    """The run that was made of a failed one: by a replay, or by a retry of that run."""
    reason: str = ""
    """Why it was discarded."""


def what_of_run(requested: int) -> str:
    """Return what a failed run's letter is about, given the sequence of the run's request.

    An id may be used again once its run has gone, and letters outlive runs.
    """
    return f"r{requested}"
