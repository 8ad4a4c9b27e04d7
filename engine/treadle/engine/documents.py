"""Run documents on JetStream: read, and written by compare-and-set on the revision."""

from __future__ import annotations

from collections import OrderedDict

import msgspec

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.ids import new_nonce
from treadle.sdk.run import RunDocument
from treadle.sdk.stored import read
from treadle.sdk.subjects import Subjects

DOCUMENTS_MAX = 20_000
"""Documents an engine keeps in memory; the others are read when an event asks for them."""

_decoder = msgspec.json.Decoder(RunDocument)
_encoder = msgspec.json.Encoder()


class Version:
    """A document at a revision, and whether this engine has driven all its effects."""

    __slots__ = ("is_driven", "revision", "run")

    def __init__(self, revision: int, run: RunDocument) -> None:
        self.revision = revision
        self.run = run
        self.is_driven = False


class Documents:
    """The run documents of a namespace."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self._versions: OrderedDict[str, Version] = OrderedDict()

    def known(self, run: str) -> Version | None:
        """Return the newest version this engine knows, which may be old."""
        return self._versions.get(run)

    async def get(self, run: str) -> Version | None:
        """Return a known version, else the stored one; None if there is no document."""
        return self._versions.get(run) or await self.read(run)

    async def read(self, run: str) -> Version | None:
        """Return the stored document, read from its leader; raise ``StoredUnreadable``."""
        stored = await self._js.last(self._subjects.runs_stream, self._subjects.run_document(run))
        if stored is None:
            return None
        return self._remember(Version(stored.sequence, read(_decoder, stored)))

    async def put(self, run: RunDocument, revision: int) -> Version | None:
        """Store a document over ``revision`` (0: it must not exist); None if it has moved.

        Raise ``StoredUnreadable`` if what stands instead is no document.
        """
        nonce = new_nonce()
        run = msgspec.structs.replace(run, write=nonce)
        subject = self._subjects.run_document(run.run)
        result = await self._js.compare_and_set(
            self._subjects.runs_stream,
            subject,
            _encoder.encode(run),
            expected=revision,
            message_id=f"{run.run}:{nonce}",
            is_mine=lambda data: _is_written_as(data, nonce),
        )
        if result.stored is not None:
            return self._remember(Version(result.stored.sequence, run))
        self._versions.pop(run.run, None)
        if result.head is not None:
            head = result.head
            if revision == 0 and not head.data:
                return await self.put(run, head.sequence)  # A deleted key is free.
            self._remember(Version(head.sequence, read(_decoder, head)))
        return None

    def _remember(self, version: Version) -> Version:
        run_id = version.run.run
        known = self._versions.get(run_id)
        if known is not None and known.revision >= version.revision:
            return known
        self._versions[run_id] = version
        self._versions.move_to_end(run_id)
        if len(self._versions) > DOCUMENTS_MAX:
            self._versions.popitem(last=False)
        return version


def _is_written_as(data: bytes, nonce: str) -> bool:
    try:
        return _decoder.decode(data).write == nonce
    except (ValueError, RecursionError):
        return False
