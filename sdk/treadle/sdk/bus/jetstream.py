"""JetStream as a store: publish, compare-and-set, read back, purge, create.

A write whose answer did not come is *unknown*, never failed: ``attempt`` says so, ``store``
publishes again (and may store twice), ``compare_and_set`` reads back what stands. Reads that
decide something ask the stream's leader (STREAM.MSG.GET); a direct get may lag behind.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from treadle.sdk.bus import acks, assets, reading
from treadle.sdk.bus.acks import ApiError, CasResult, Refused, Stored, WriteAck
from treadle.sdk.bus.connection import Connection, Unknown
from treadle.sdk.bus.retrying import BUDGET_S, Backoff
from treadle.sdk.bus.wire import encode_headers
from treadle.sdk.errors import ServerUnsuitable

__all__ = ["ApiError", "CasResult", "JetStream", "Refused", "Stored"]

API_PREFIX = "$JS.API."
WRITE_TIMEOUT_S = 2.0
"""Of one try. An R3 write takes milliseconds; after this the leader is probably gone."""
_CONFLICT_WAIT_S = (0.002, 0.01)

_EXPECTED = "Nats-Expected-Last-Subject-Sequence"
_EXPECTED_FILTER = "Nats-Expected-Last-Subject-Sequence-Subject"
_MESSAGE_ID = "Nats-Msg-Id"


class JetStream:
    """JetStream over one connection."""

    def __init__(self, connection: Connection, *, message_ids: bool = True) -> None:
        self.connection = connection
        self._message_ids = message_ids

    async def api(
        self, tail: str, body: object | None = None, *, timeout_s: float = 5.0
    ) -> dict[str, Any]:
        """Call ``$JS.API.<tail>`` once; raise ``ApiError`` or ``Unknown``."""
        raw = await self._call(tail, body, timeout_s)
        answer: dict[str, Any] = msgspec.json.decode(raw)
        if "error" in answer:
            raise msgspec.convert(answer["error"], acks.Fault).raised()
        return answer

    async def _call(self, tail: str, body: object | None, timeout_s: float) -> bytes:
        data = b"" if body is None else msgspec.json.encode(body)
        answer = await self.connection.send_request(API_PREFIX + tail, data, timeout_s=timeout_s)
        return answer.data

    # ---------------------------------------------------------------- write

    async def attempt(
        self,
        subject: str,
        data: bytes,
        *,
        expected: int | None = None,
        filter: str = "",
        message_id: str = "",
        headers: Mapping[str, str] | None = None,
    ) -> int | Refused:
        """Try one write; return its sequence, or how the compare-and-set was refused.

        With ``expected`` the newest sequence on the subject (on ``filter``, if given) must be
        that one; 0 is none. Raise ``Unknown`` without an answer, ``InvalidPayload`` for a size
        the server or the stream does not take, ``ApiError`` for any other error.
        """
        ack = await self._try(subject, data, expected, filter, message_id, headers)
        if isinstance(ack, Refused):
            return ack
        return ack.seq

    async def _try(
        self,
        subject: str,
        data: bytes,
        expected: int | None,
        filter: str,
        message_id: str,
        headers: Mapping[str, str] | None,
    ) -> WriteAck | Refused:
        fields = dict(headers) if headers else {}
        if expected is not None:
            fields[_EXPECTED] = str(expected)
            if filter:
                fields[_EXPECTED_FILTER] = filter
        if message_id and self._message_ids:
            fields[_MESSAGE_ID] = message_id
        answer = await self.connection.send_request(
            subject, data, headers=encode_headers(fields), timeout_s=WRITE_TIMEOUT_S
        )
        ack = acks.write_ack(answer.data)
        fault = ack.error
        if fault is None:
            return ack
        if fault.err_code in (acks.WRONG_LAST_SEQUENCE, acks.CONFLICT_IN_FLIGHT):
            return Refused(fault.err_code)
        raise acks.too_large(subject, fault) or fault.raised()

    async def store(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        headers: Mapping[str, str] | None = None,
        budget_s: float = BUDGET_S,
        full_s: float | None = None,
    ) -> int:
        """Publish until it is acknowledged; return the sequence. It may be stored twice.

        Raise ``ServerUnavailable`` after the budget; with ``full_s``, after so many seconds if the
        store is full.
        """
        backoff = Backoff(f"the message for {subject!r}", budget_s, full_s=full_s)
        while True:
            try:
                ack = await self._try(subject, data, None, "", message_id, headers)
                assert isinstance(ack, WriteAck), "refused, though nothing was expected"
                return ack.seq
            except (Unknown, ApiError) as exc:
                await backoff.wait(exc)

    async def compare_and_set(
        self,
        stream: str,
        subject: str,
        data: bytes,
        *,
        expected: int,
        filter: str = "",
        message_id: str = "",
        is_mine: Callable[[bytes], bool],
        budget_s: float = BUDGET_S,
        full_s: float | None = None,
    ) -> CasResult:
        """Store the message if ``expected`` is the newest sequence; else say what stands.

        All writers of a subject must use the byte-identical filter: R3 compares writes that
        are in flight by that string. ``is_mine`` recognises this write, or an equivalent one
        of another process, when it is read back. Raise ``ServerUnavailable`` as ``store`` does.
        """
        backoff = Backoff(f"the message for {subject!r}", budget_s, full_s=full_s)
        is_certain = True  # No earlier try of this write can have been stored unheard.
        while True:
            doubt: Unknown | ApiError | None = None
            try:
                ack = await self._try(subject, data, expected, filter, message_id, None)
                if isinstance(ack, Refused):
                    if ack.transient:
                        await backoff.wait_short(_CONFLICT_WAIT_S)
                        continue
                elif not ack.duplicate:
                    return CasResult(Stored(ack.seq, data, 0, subject), None)
                else:
                    # An earlier write had this id. If it is not what stands, the id is spent.
                    message_id = ""
            except (Unknown, ApiError) as exc:
                doubt = exc
                if isinstance(exc, ApiError) and not exc.transient:
                    raise exc.for_users(f"the message for {subject!r}") from exc
                is_certain = False
                await backoff.wait(exc)
            result = await self._stands(stream, subject, filter, is_mine)
            if result.stored is not None or result.newest != expected:
                return result._replace(is_repeated=is_certain and result.stored is not None)
            if doubt is None:
                await backoff.wait_short(_CONFLICT_WAIT_S)

    async def _stands(
        self,
        stream: str,
        subject: str,
        filter: str,
        is_mine: Callable[[bytes], bool],
    ) -> CasResult:
        # The filter's head first: a write in between then shows as a subject that is newer.
        newest = await self.last(stream, filter) if filter else None
        head = await self.last(stream, subject)
        if head is not None and is_mine(head.data):
            return CasResult(head, None, head.sequence)
        of_subject = head.sequence if head else 0
        return CasResult(None, head, max(of_subject, newest.sequence if newest else 0))

    # ---------------------------------------------------------------- read

    async def last(self, stream: str, subject: str, *, budget_s: float = BUDGET_S) -> Stored | None:
        """Return the newest message on a subject or filter, as the stream's leader knows it."""
        return await self._get(stream, {"last_by_subj": subject}, budget_s)

    async def next(
        self, stream: str, filter: str, start: int, *, budget_s: float = BUDGET_S
    ) -> Stored | None:
        """Return the first message that matches, from a sequence on, as the leader knows it."""
        return await self._get(stream, {"seq": start, "next_by_subj": filter}, budget_s)

    async def get(self, stream: str, sequence: int, *, budget_s: float = BUDGET_S) -> Stored | None:
        """Return the message with the sequence, None if it is not stored (any more)."""
        return await self._get(stream, {"seq": sequence}, budget_s)

    async def _get(self, stream: str, body: dict[str, object], budget_s: float) -> Stored | None:
        backoff = Backoff(f"a message of stream {stream!r}", budget_s, verb="read")
        while True:
            try:
                raw = await self._call(f"STREAM.MSG.GET.{stream}", body, WRITE_TIMEOUT_S)
                return acks.stored_of(raw)
            except (Unknown, ApiError) as exc:
                _require_stream(stream, exc)
                await backoff.wait(exc)

    def read(
        self, stream: str, filter: str, *, start: int = 1, batch: int = reading.BATCH
    ) -> AsyncIterator[Stored]:
        """Iterate over the stored messages that match, from sequence ``start`` to the end.

        For histories and lists: on R3 the end may lag behind the leader by a moment. ``batch``
        are asked for at a time.
        """
        return reading.read(self.connection, stream, filter, start, batch)

    async def count(self, stream: str, filter: str) -> int:
        """Return how many stored messages match; on R3 it may lag behind the leader."""
        return await reading.count(self.connection, stream, filter)

    async def first_since(self, stream: str, filter: str, since: datetime) -> int | None:
        """Return the sequence of the first matching message stored since then; None if none was."""
        return await reading.first_since(self.connection, stream, filter, since)

    # ---------------------------------------------------------------- purge, create

    async def purge(
        self, stream: str, filter: str, *, keep: int = 0, up_to: int = 0, budget_s: float = BUDGET_S
    ) -> int:
        """Delete the messages that match; return how many (0 if the answer was lost).

        ``keep`` spares the newest so many; ``up_to`` deletes only sequences below it.
        """
        body: dict[str, object] = {"filter": filter}
        if keep:
            body["keep"] = keep
        if up_to:
            body["seq"] = up_to
        backoff = Backoff(f"a purge of stream {stream!r}", budget_s, verb="done")
        while True:
            try:
                return int((await self.api(f"STREAM.PURGE.{stream}", body))["purged"])
            except (Unknown, ApiError) as exc:
                _require_stream(stream, exc)
                await backoff.wait(exc)

    async def ensure_stream(
        self,
        config: Mapping[str, Any],
        *,
        initial: Mapping[str, Any] | None = None,
        budget_s: float = BUDGET_S,
    ) -> None:
        """Create the stream, or accept the one that exists if it is configured the same.

        ``initial`` is what a new one gets besides, and an existing one may have otherwise. Raise
        ``ServerUnsuitable`` naming what differs.
        """
        await assets.ensure_stream(self, config, initial or {}, budget_s)

    async def edit_stream(
        self, name: str, changes: Mapping[str, Any], *, budget_s: float = BUDGET_S
    ) -> None:
        """Give a stream that exists these settings, and leave its others."""
        await assets.edit_stream(self, name, changes, budget_s)

    async def ensure_consumer(
        self, stream: str, name: str, config: Mapping[str, Any], *, budget_s: float = BUDGET_S
    ) -> None:
        """Create the durable consumer, or bring the one that exists to this configuration."""
        await assets.ensure_consumer(self, stream, name, config, budget_s)


def _require_stream(stream: str, exc: Unknown | ApiError) -> None:
    if isinstance(exc, ApiError) and exc.err_code == acks.STREAM_NOT_FOUND:
        raise ServerUnsuitable(
            f"stream {stream!r} does not exist: the namespace is not set up on this server. "
            f"Start an engine once (`treadle engine`), or check TREADLE_NAMESPACE."
        ) from exc
