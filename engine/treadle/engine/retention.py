"""Retention: what is left of a run goes, some time after the run has ended.

Registers and checkpoints first, its events, timers and output next, the document last: a register
that comes back after a crash of the server still meets a document, or none, and is ended again
either way.
Every engine sweeps; deleting twice is deleting once.
"""

from __future__ import annotations

import contextlib
import logging
import time

import msgspec

from treadle.engine.core.children import awaits
from treadle.engine.recurring import sweep_every
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnsuitable, StoredUnreadable
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects

RETENTION_S = 30 * 24 * 3600.0
"""How long an ended run is kept, by default: thirty days."""
SWEEP_S = 60.0

_log = logging.getLogger("treadle.engine")
_decoder = msgspec.json.Decoder(RunDocument)


class Retention:
    """Deletes ended runs that are older than ``keep_s`` seconds; 0 keeps all for ever."""

    def __init__(self, js: JetStream, subjects: Subjects, *, keep_s: float = RETENTION_S) -> None:
        self._js = js
        self._subjects = subjects
        self._keep_s = keep_s

    async def run(self) -> None:
        """Sweep about once a minute, or as often as a shorter retention needs, until cancelled."""
        if self._keep_s <= 0:
            return
        period_s = min(SWEEP_S, self._keep_s)
        await sweep_every(
            period_s, lambda: self.sweep(round(time.time() * 1000)), "engine.sweep-failed %r"
        )

    async def sweep(self, now_ms: int) -> int:
        """Delete what is old enough at ``now_ms``; return how many runs went.

        Documents are stored in the order of their last change, so the sweep ends at the first
        one that is too young.
        """
        before_ms = now_ms - round(self._keep_s * 1000)
        count = 0
        async for stored in self._js.read(self._subjects.runs_stream, self._subjects.all_runs):
            if stored.time_ms > before_ms:
                break
            try:
                run = read(_decoder, stored)
            except StoredUnreadable:
                continue  # Whose it is, and whether it is over, nobody knows: an operator decides.
            if run.is_terminal and run.ended_ms <= before_ms and not await self._is_awaited(run):
                await self._delete(run)
                count += 1
        return count

    async def _is_awaited(self, run: RunDocument) -> bool:
        """Return whether a step of another run has not heard of this end yet: it needs it."""
        if run.parent is None or run.parent.detached:
            return False
        subject = self._subjects.run_document(run.parent.run)
        stored = await self._js.last(self._subjects.runs_stream, subject)
        try:
            parent = read(_decoder, stored) if stored and stored.data else None
        except StoredUnreadable:
            return False
        return parent is not None and awaits(parent, run.run, run.parent) is True

    async def _delete(self, run: RunDocument) -> None:
        subjects = self._subjects
        await self._js.purge(subjects.steps_stream, subjects.steps_of_run(run.run, run.domain))
        await self._js.purge(subjects.events_stream, subjects.events_of_run(run.run))
        # Its timers were cleared when it ended; one may have fired in that moment.
        await self._js.purge(subjects.timers_stream, subjects.timers_of_run(run.run))
        await self._js.purge(subjects.timers_stream, subjects.fired_of_run(run.run))
        await self._js.purge(subjects.workflows_stream, subjects.pause(run.run))
        with contextlib.suppress(ServerUnsuitable):  # Nobody needs that stream.
            await self._js.purge(subjects.output_stream, subjects.output_of_run(run.run))
        await self._js.purge(subjects.runs_stream, subjects.run_document(run.run))
