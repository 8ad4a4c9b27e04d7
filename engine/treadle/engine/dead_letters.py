"""Dead letters: what failed or could not be processed, kept with all it takes to replay it."""

from __future__ import annotations

import base64

import msgspec

from treadle.engine.core.moment import Moment
from treadle.engine.pending import Pending
from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.bus.puller import Delivery
from treadle.sdk.messages import DeadLetter, Failure, LetterMark
from treadle.sdk.messages.dead_letter import what_of_run
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

UNNAMED = "_"
"""Stands for a run or workflow whose name could not be read."""
FAILURE_CHARS_MAX = 2_000
"""Of the text that says why an event was set aside."""
HEADERS_BYTES = 512
"""Room for the headers of a letter, which count as a part of its message."""
_PADDING = 32
"""Of two base64 texts, and the name of the field of the second."""


class DeadLetters:
    """The dead-letter stream of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects

    async def run_failed(self, run: RunDocument) -> None:
        """Record a failing run, once. Called before its document says so: whoever sees the
        status finds the letter.
        """
        letter = DeadLetter(
            reason="run_failed",
            run=run.run,
            workflow=run.workflow,
            step=run.failed_step,
            failure=run.failure,
            parent=run.parent,
            event=f"e{run.requested}",
            at_ms=run.ended_ms,
        )
        await self._store(self._subject_of(run), letter)
        failpoints.reach("engine.letter-stored")

    async def tried_again(self, source: RunDocument, retry: RunDocument) -> None:
        """Mark the letter of a failed run as done by a retry of it, unless it is marked already.

        Called before the document of the retry is stored: whoever sees that finds the mark.
        """
        s, letter = self._subjects, self._subject_of(source)
        if await self._js.last(s.dead_stream, letter) is None:
            return  # A run that was cancelled has none.
        mark = LetterMark(
            state="replayed", nonce=f"e{retry.requested}", at_ms=retry.requested_ms, run=retry.run
        )
        await self._js.compare_and_set(
            s.dead_stream,
            s.letter_mark(letter),
            msgspec.json.encode(mark),
            expected=0,
            # One that is there says what somebody has done about the letter before.
            is_mine=lambda _: True,
        )
        failpoints.reach("engine.letter-marked")

    def _subject_of(self, run: RunDocument) -> str:
        return self._subjects.dead(run.workflow, run.run, what_of_run(run.requested))

    async def pending(self, reason: str, pending: Pending, failure: Failure) -> None:
        """Set aside an event that was taken, and cannot be handled."""
        place = (pending.subject, pending.moment, pending.data)
        await self.event(reason, *place, failure, pending.headers)

    async def event(
        self,
        reason: str,
        subject: str,
        moment: Moment,
        data: bytes,
        failure: Failure,
        headers: bytes | None,
    ) -> None:
        """Set aside an event that cannot be processed, once: byte for byte, or what fits of it."""
        subjects = self._subjects
        is_fired = moment.id[:1] == "t"
        letter = DeadLetter(
            reason=reason,
            run=moment.run or UNNAMED,
            failure=_cut(failure),
            subject=subject,
            event=moment.id,
            at_ms=moment.ms,
            stream=subjects.timers_stream if is_fired else subjects.events_stream,
            sequence=int(moment.id[1:]),
        )
        letter = self._with_body(letter, data, headers)
        await self._store(subjects.dead("", letter.run, moment.id), letter)
        failpoints.reach("engine.event-set-aside")

    async def message(
        self, workflow: str, run: str, stream: str, message: Delivery, failure: Failure
    ) -> int:
        """Set aside a message of a subject that cannot be a run's input, once; return its number.

        0 if another letter has its place.
        """
        letter = DeadLetter(
            reason="unusable_message",
            run=run,
            workflow=workflow,
            failure=_cut(failure),
            subject=message.subject,
            at_ms=message.time_ms,
            stream=stream,
            sequence=message.sequence,
        )
        letter = self._with_body(letter, message.data, message.raw_headers)
        return await self._store(self._subjects.dead(workflow, run, "message"), letter)

    async def _store(self, subject: str, letter: DeadLetter) -> int:
        """Store a letter where there is to be one; return its number."""
        result = await self._js.compare_and_set(
            self._subjects.dead_stream,
            subject,
            msgspec.json.encode(letter),
            expected=0,
            # Any that is there is of the same, written by an engine that died or was faster.
            is_mine=lambda _: True,
        )
        return result.stored.sequence if result.stored else 0

    def _with_body(self, letter: DeadLetter, data: bytes, headers: bytes | None) -> DeadLetter:
        """Return the letter with the message; its beginning if the server takes no more."""
        whole = f"message {letter.sequence} of stream {letter.stream}"
        marked = msgspec.structs.replace(letter, body_bytes=len(data), whole_body_at=whole)
        room = self._js.connection.max_payload_bytes - HEADERS_BYTES
        left = max(0, room - len(msgspec.json.encode(marked)))
        kept = left // 4 * 3
        headers = headers or b""
        if len(data) + len(headers) + _PADDING <= kept:
            return msgspec.structs.replace(
                letter,
                headers_base64=base64.b64encode(headers).decode(),
                body_base64=base64.b64encode(data).decode(),
            )
        return msgspec.structs.replace(marked, body_base64=base64.b64encode(data[:kept]).decode())


def _cut(failure: Failure) -> Failure:
    return msgspec.structs.replace(failure, message=failure.message[:FAILURE_CHARS_MAX])
