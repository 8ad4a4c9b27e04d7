"""Dead letters: what failed or could not be processed, kept with all it takes to replay it."""

from __future__ import annotations

import base64

import msgspec

from treadle.engine.core.moment import Moment
from treadle.sdk import failpoints
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.messages import DeadLetter, Failure
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

UNNAMED = "_"
"""Stands for a run or workflow whose name could not be read."""


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
            event=f"e{run.requested}",
            at_ms=run.ended_ms,
        )
        await self._js.compare_and_set(
            self._subjects.dead_stream,
            self._subjects.dead(run.workflow, run.run),
            msgspec.json.encode(letter),
            expected=0,
            # Any letter there is of this run, written by an engine that died or was faster.
            is_mine=lambda _: True,
        )
        failpoints.reach("engine.letter-stored")

    async def event(
        self, reason: str, subject: str, moment: Moment, data: bytes, failure: Failure
    ) -> None:
        """Set aside an event that cannot be processed, byte for byte."""
        letter = DeadLetter(
            reason=reason,
            run=moment.run or UNNAMED,
            failure=failure,
            subject=subject,
            event=moment.id,
            body_base64=base64.b64encode(data).decode(),
            at_ms=moment.ms,
        )
        await self._store(letter, f"{moment.id}:dead")

    async def _store(self, letter: DeadLetter, message_id: str) -> None:
        subject = self._subjects.dead(letter.workflow or UNNAMED, letter.run)
        await self._js.store(subject, msgspec.json.encode(letter), message_id=message_id)
