"""How an answer goes out: its bytes, with stops and cuts where the script wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import assert_never

from treadle.worker.agent.testing.gate import Gate
from treadle.worker.agent.testing.http import Peer
from treadle.worker.agent.testing.refusal import STATUS_OF_KIND, error_body
from treadle.worker.agent.testing.script import (
    Break,
    Cut,
    Failure,
    Fault,
    NoStop,
    Place,
    Raw,
    Stall,
)
from treadle.worker.agent.testing.sse import encode
from treadle.worker.agent.testing.wire import Json, compact

EVENT_STREAM = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
JSON = {"content-type": "application/json"}

Piece = bytes | Gate


@dataclass(frozen=True)
class Delivery:
    """An answer, ready to be sent."""

    status: int
    headers: dict[str, str]
    pieces: list[Piece]
    """Bytes to send, and gates to wait at between them."""
    size_bytes: int | None = None
    """What the head promises; ``None`` sends chunks."""
    cut: Cut | None = None
    """What happens after the last piece instead of a proper end."""


def of_json(status: int, body: Json, headers: Mapping[str, str] | None = None) -> Delivery:
    """Return a whole JSON answer."""
    raw = compact(body).encode()
    return Delivery(status, {**JSON, **(headers or {})}, [raw], len(raw))


def of_failure(failure: Failure, request_id: str) -> Delivery:
    """Return an error."""
    body = error_body(failure.kind, failure.message, request_id)
    return of_json(failure.status, body, failure.headers)


def of_message(message: Json, fault: Fault | None, request_id: str) -> Delivery:
    """Return a message that is not streamed."""
    whole = of_json(200, message)
    raw = compact(message).encode()
    match fault:
        case None | NoStop():
            return whole
        case Break():
            status = STATUS_OF_KIND.get(fault.kind, 500)
            return of_json(status, error_body(fault.kind, fault.message, request_id))
        case Cut():
            at = _place_in(raw, fault.place)
            return Delivery(200, JSON, [raw[:at]], len(raw), cut=fault)
        case Stall():
            at = _place_in(raw, fault.place)
            return Delivery(200, JSON, [raw[:at], fault.gate, raw[at:]], len(raw))
        case _:
            assert_never(fault)


def of_stream(events: Sequence[Json], fault: Fault | None, request_id: str) -> Delivery:
    """Return a message as a stream of events."""
    sent = [encode(event) for event in events]
    cut: Cut | None = None
    pieces: list[Piece]
    match fault:
        case None:
            pieces = [*sent]
        case NoStop():
            pieces = [*sent[:-1]]
        case Break():
            before, _ = _split(events, sent, fault.place)
            broken = error_body(fault.kind, fault.message, request_id)
            pieces = [*before, encode(broken)]
        case Cut():
            pieces, cut = [*_split(events, sent, fault.place)[0]], fault
        case Stall():
            before, after = _split(events, sent, fault.place)
            pieces = [*before, fault.gate, *after]
        case _:
            assert_never(fault)
    return Delivery(200, EVENT_STREAM, pieces, cut=cut)


def of_raw(raw: Raw) -> Delivery:
    """Return a stream of the test's own bytes."""
    cut = Cut(Place()) if raw.cut else None
    return Delivery(200, EVENT_STREAM, [*raw.pieces], cut=cut)


def _place_in(raw: bytes, place: Place) -> int:
    if place.size_bytes is not None:
        return place.size_bytes
    return 0 if place.event == 0 else len(raw) // 2


def _split(
    events: Sequence[Json], sent: list[bytes], place: Place
) -> tuple[list[bytes], list[bytes]]:
    if place.size_bytes is not None:
        raw = b"".join(sent)
        return [raw[: place.size_bytes]], [raw[place.size_bytes :]]
    if isinstance(place.event, int):
        return sent[: place.event], sent[place.event :]
    kinds = [event["type"] for event in events]
    if place.event not in kinds:
        raise ValueError(
            f"the stream has no event {place.event!r}, so nothing can happen after it. "
            f"It has {', '.join(dict.fromkeys(kinds))}."
        )
    after = kinds.index(place.event) + 1
    return sent[:after], sent[after:]


async def deliver(peer: Peer, delivery: Delivery, request_id: str) -> bool:
    """Send an answer; return whether it was sent whole."""
    headers = {**delivery.headers, "request-id": request_id}
    chunked = delivery.size_bytes is None
    peer.send_head(delivery.status, headers, delivery.size_bytes)
    await peer.send(b"", chunked=False)
    for piece in delivery.pieces:
        if isinstance(piece, Gate):
            await piece.wait_open()
        elif piece:
            await peer.send(piece, chunked=chunked)
    if delivery.cut is not None:
        await peer.close(reset=delivery.cut.reset)
        return False
    if chunked:
        await peer.end_chunks()
    return True
