"""The messages to a step: the newest, which is the last one on its own subject, and the one that
decides an approval, which is the first that does.

Asked of the stream and kept nowhere: whoever decides whether a step may end or wait has to know of
every message that is stored, handled by an engine or not.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from treadle.engine.core.moment import Moment
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.decisions import first_decision
from treadle.sdk.definition import ApprovalStep
from treadle.sdk.messages import MessageSent
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import RegisterAddress, Subjects

_decoder = msgspec.json.Decoder(MessageSent)


class Message(NamedTuple):
    """A message as it is stored."""

    event: MessageSent
    moment: Moment


class Inbox:
    """The messages to the steps of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects

    async def decision(self, run: RunDocument, step: ApprovalStep) -> Message | None:
        """Return the message that decides an approval step, which is the first one stored."""
        found = await first_decision(self._js, self._subjects, run, step)
        if found is None:
            return None
        moment = Moment(run.run, f"e{found.sequence}", found.time_ms, found.sequence)
        return Message(found.message, moment)

    async def newest(self, address: RegisterAddress) -> Message | None:
        """Return the newest message to a step, read from the stream's leader; None if none."""
        subject = self._subjects.messages(address.run, address.step, address.domain)
        stored = await self._js.last(self._subjects.events_stream, subject)
        if stored is None:
            return None
        sequence = stored.sequence
        moment = Moment(address.run, f"e{sequence}", stored.time_ms, sequence)
        try:
            return Message(_decoder.decode(stored.data), moment)
        except (ValueError, RecursionError):
            # Not a message, whatever wrote it there. It is set aside where events are taken;
            # here it stands for one, so that nothing ends on an unknown ground.
            return Message(MessageSent(step=address.step, id=""), moment)
