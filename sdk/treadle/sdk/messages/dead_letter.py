"""What is kept of that which could not be processed."""

from __future__ import annotations

import msgspec

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
    subject: str = ""
    event: str = ""
    """Event id of the message, if one caused this."""
    body_base64: str = ""
    """The original message, byte for byte; its beginning if ``body_bytes`` is set."""
    body_bytes: int = 0
    """Size of a message too large for a letter that holds all of it; 0 if this one does."""
    whole_body_at: str = ""
    """Where such a message is stored whole, until the run's retention has passed."""
    at_ms: int = 0
