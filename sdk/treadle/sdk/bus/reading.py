"""Many stored messages in one go: batched direct gets (ADR-31), from a sequence to the end."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime

import msgspec

from treadle.sdk.bus.acks import Stored, stored_of_direct
from treadle.sdk.bus.connection import Connection
from treadle.sdk.bus.retrying import BUDGET_S, Backoff
from treadle.sdk.bus.wire import Message, Unknown

BATCH = 256
BATCH_BYTES_MAX = 4 * 1024 * 1024
_TIMEOUT_S = 5.0
_END_OF_BATCH, _NOT_FOUND, _NO_RESPONDERS = 204, 404, 503


async def read(
    connection: Connection, stream: str, filter: str, start: int, most: int = BATCH
) -> AsyncIterator[Stored]:
    """Iterate over the messages of a stream that match; see ``JetStream.read``."""
    more = True
    while more:
        batch, more = await _batch(connection, stream, filter, start, most)
        for stored in batch:
            yield stored
            start = stored.sequence + 1


async def count(connection: Connection, stream: str, filter: str) -> int:
    """Return how many messages match, without reading them; see ``JetStream.count``."""
    asked = {"seq": 1, "next_by_subj": filter, "batch": 1}
    batch, behind = await _asked(connection, stream, asked)
    return len(batch) + behind


async def first_since(
    connection: Connection, stream: str, filter: str, since: datetime
) -> int | None:
    """Return the sequence of the first matching message stored since then; None if none was."""
    asked = {"start_time": since.isoformat(), "next_by_subj": filter, "batch": 1}
    batch, _ = await _asked(connection, stream, asked)
    return batch[0].sequence if batch else None


async def _batch(
    connection: Connection, stream: str, filter: str, start: int, most: int
) -> tuple[list[Stored], bool]:
    """Return the next messages, and whether there are more behind them."""
    asked = {"seq": start, "next_by_subj": filter, "batch": most, "max_bytes": BATCH_BYTES_MAX}
    batch, behind = await _asked(connection, stream, asked)
    return batch, bool(batch) and behind > 0


async def _asked(
    connection: Connection, stream: str, asked: Mapping[str, object]
) -> tuple[list[Stored], int]:
    """Return the messages that were asked for, and how many match behind them."""
    backoff = Backoff(f"stream {stream!r}", BUDGET_S, verb="read")
    request = msgspec.json.encode(asked)
    while True:
        try:
            answer = await connection.request_many(
                f"$JS.API.DIRECT.GET.{stream}", request, is_last=_has_status, timeout_s=_TIMEOUT_S
            )
            last = answer.pop()
            if last.status == _NOT_FOUND and not answer:
                return [], 0
            if last.status != _END_OF_BATCH:
                raise Unknown(f"a direct get ended with {last.status} {last.description}")
            batch = [stored_of_direct(each.raw_headers, each.data) for each in answer]
            return batch, int(last.headers.get("Nats-Num-Pending", "0"))
        except Unknown as exc:
            await backoff.wait(exc)


def _has_status(message: Message) -> bool:
    return message.status != 0
