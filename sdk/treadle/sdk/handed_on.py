"""What an event of a run hands on: the run's input, or the output of a step that waited for it."""

from __future__ import annotations

import msgspec

from treadle.sdk import approvals
from treadle.sdk.messages import (
    ChildEnded,
    EventMatched,
    MessageSent,
    OutcomeKept,
    RunRequested,
    SignalReceived,
)

Carrier = RunRequested | SignalReceived | EventMatched | MessageSent | ChildEnded | OutcomeKept


def handed_on(event: Carrier, time_ms: int) -> msgspec.Raw:
    """Return the JSON that an event hands on; ``time_ms`` is when it was stored."""
    match event:
        case RunRequested():
            return event.input
        case OutcomeKept():
            return event.output
        case SignalReceived() | EventMatched():
            return event.payload
        case ChildEnded():
            return event.output
        case MessageSent():
            return approvals.output_of(event, time_ms)
