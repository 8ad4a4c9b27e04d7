"""Messages to a step, read by the worker that executes it.

They lie on a subject of the step's own among the run's events, each once, so reading costs what
is new and not what the run has been through.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from treadle.sdk import payload
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import MessageKind, MessageSent
from treadle.sdk.subjects import RegisterAddress, Subjects

MESSAGES_MAX = 500
"""Of one reading; the rest is for the next. Each may be as large as a payload."""


class ReceivedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message that was sent to the step."""

    sequence: int
    """Its place among all events: messages are read in this order."""
    kind: MessageKind
    id: str
    payload: msgspec.Raw
    """The JSON that was sent."""

    def decode(self, type_: Any = Any) -> Any:
        """Return the payload, decoded into ``type_``; raise ``InvalidPayload`` if it is none."""
        return payload.decode(f"payload of message {self.id!r}", self.payload, type_)


class Letters(NamedTuple):
    """What a reading found: the messages, and the sequence up to which it has read."""

    messages: list[ReceivedMessage]
    read_up_to: int


class Mailbox:
    """Reads the messages to steps."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._decode = msgspec.json.Decoder(MessageSent).decode

    async def read(self, address: RegisterAddress, after: int) -> Letters:
        """Return the messages to a step that follow that sequence, oldest first."""
        stream = self._subjects.events_stream
        subject = self._subjects.messages(address.run, address.step, address.domain)
        found: list[ReceivedMessage] = []
        async for stored in self._js.read(stream, subject, start=after + 1):
            after = stored.sequence
            try:
                message = self._decode(stored.data)
            except (ValueError, RecursionError):
                continue  # The engine has set it aside as a dead letter.
            found.append(received(stored.sequence, message))
            if len(found) == MESSAGES_MAX:
                break
        return Letters(found, after)


def received(sequence: int, message: MessageSent) -> ReceivedMessage:
    """Return a stored message as its receiver sees it."""
    return ReceivedMessage(
        sequence=sequence, kind=message.kind, id=message.id, payload=message.payload
    )
