"""Which runs are paused, known to every engine without a read: a mark per paused run.

    document paused  ──before, after──> the mark is stored   heard on its subject by every engine
    document resumed ──effect──> the mark is emptied, by whoever finds it

A mark is a hint and the document decides: a run that has one is asked about before a task of it
is given out, one that has none is not. A run that is not paused costs a look into a dictionary. An
engine lists the marks before it takes its first event, after each reconnect, and now and then.
"""

from __future__ import annotations

import asyncio
import logging

from treadle.engine.documents import Documents
from treadle.engine.recurring import sweep_every
from treadle.sdk import failpoints
from treadle.sdk.bus.connection import Message
from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.run import RunDocument
from treadle.sdk.subjects import Subjects

SWEEP_S = 5.0
"""Between two listings that nothing asked for: the longest that a lost message can cost."""

_log = logging.getLogger("treadle.engine")


class Pauses:
    """The marks of a namespace's paused runs."""

    def __init__(self, js: JetStream, subjects: Subjects, documents: Documents) -> None:
        self._js = js
        self._subjects = subjects
        self._documents = documents
        self._marked: dict[str, int] = {}
        """By run: which of the signs heard here was its last."""
        self._signs = 0
        self._is_current = False
        self._listing = asyncio.Lock()

    async def start(self) -> None:
        """Know every mark from here on."""
        await self._js.connection.subscribe(self._subjects.all_pauses, self._heard)
        self._js.connection.on_reconnect(self._disconnected)
        await self._list()

    async def run(self) -> None:
        """List the marks now and then, until cancelled."""
        await sweep_every(SWEEP_S, self._list, "engine.pauses-unlisted %r")

    async def holds(self, run: str) -> bool:
        """True if nothing of the run may be given out."""
        if not self._is_current:
            await self._list()
        if run not in self._marked:
            return False
        version = await self._documents.read(run)
        if version is not None and version.run.is_paused and not version.run.is_terminal:
            return True
        await self._unmark(run)
        return False

    async def settle(self, run: RunDocument) -> None:
        """Drive the effect of a document that was paused once: a mark while it is, none after."""
        if run.is_paused and not run.is_terminal:
            self._note(run.run)
            assert run.pause is not None
            # Also if there seems to be one: another engine may be about to empty it, and does so
            # only at the revision it has seen.
            await self._js.store(self._subjects.pause(run.run), run.pause.event.encode())
            failpoints.reach("engine.pause-marked")
        elif run.run in self._marked:
            await self._unmark(run.run)

    async def _unmark(self, run: str) -> None:
        """Empty the mark of a run unless it is paused, which is asked after the mark was seen."""
        sign, subject = self._marked.get(run, 0), self._subjects.pause(run)
        stored = await self._js.last(self._subjects.workflows_stream, subject)
        if stored is not None and stored.data:
            version = await self._documents.read(run)
            if version is not None and version.run.is_paused and not version.run.is_terminal:
                return
            await self._js.compare_and_set(
                self._subjects.workflows_stream,
                subject,
                b"",
                expected=stored.sequence,
                is_mine=lambda data: not data,
            )
        if self._marked.get(run) == sign:
            del self._marked[run]

    def _heard(self, message: Message) -> None:
        # An empty mark is no proof: it may have been refused. Whoever needs to know asks.
        if message.data:
            self._note(self._subjects.parse_pause(message.subject))

    def _note(self, run: str) -> None:
        self._signs += 1
        self._marked[run] = self._signs

    def _disconnected(self) -> None:
        self._is_current = False

    async def _list(self) -> None:
        async with self._listing:
            self._is_current, since = True, self._signs
            try:
                listed = {
                    self._subjects.parse_pause(stored.subject)
                    async for stored in self._js.read(
                        self._subjects.workflows_stream, self._subjects.all_pauses
                    )
                    if stored.data
                }
            except BaseException:
                self._is_current = False
                raise
            heard = {run: sign for run, sign in self._marked.items() if sign > since}
            self._marked = dict.fromkeys(listed, 0) | heard
