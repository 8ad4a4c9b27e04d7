"""The decision of an approval step, read from the stream: the first message stored that decides.

Whoever asks gets the same: an engine that is told of a later one first, and the person who answers.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.sdk import approvals
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.definition import ApprovalStep
from treadle.sdk.messages import MessageSent
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

_decoder = msgspec.json.Decoder(MessageSent)


class Decision(NamedTuple):
    """A message that decides, and where and when it is stored."""

    message: MessageSent
    sequence: int
    time_ms: int


async def first_decision(
    js: JetStream, subjects: Subjects, run: RunDocument, step: ApprovalStep
) -> Decision | None:
    """Return the decision of a step of a run, as the stream's leader knows it; None if none is."""
    subject = subjects.messages(run.run, step.id, run.domain)
    start = run.requested
    while (stored := await js.next(subjects.events_stream, subject, start)) is not None:
        try:
            message = _decoder.decode(stored.data)
        except (ValueError, RecursionError):
            pass  # Somebody has stored something else there.
        else:
            if approvals.is_decision(step, message):
                return Decision(message, stored.sequence, stored.time_ms)
        start = stored.sequence + 1
    return None
