"""Which runs of a lane are active: of the first requests, in the stream's order, that are not over.

    one place:   request 5: over | request 8: over | request 9: active | request 12: queued | ...
    two places:  request 5: active | request 8: over | request 9: active | request 12: queued | ...

Over is for ever, and new requests come behind the others. So what was read of the requests
before one may be old, and still it is right about this: if fewer than so many were not over, fewer
are. No register says who holds a lane, and nothing has to be given back; a run leaves its lane by
ending, whatever ended it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal, NamedTuple

import msgspec

from treadle.engine.core.moment import Moment
from treadle.sdk.lanes import LaneRecord, Place
from treadle.sdk.messages import Failure, RunRequested
from treadle.sdk.run import TERMINAL, RunDocument

UNREADABLE = "unreadable"


class Glimpse(msgspec.Struct, frozen=True):
    """What a lane needs to know of a run's document, whichever version has written it."""

    status: str = "running"
    """Of a document that nobody can read ``UNREADABLE``: nothing can move its run."""
    requested: int = 0
    requested_ms: int = 0
    workflow: str = ""
    definition: str = ""
    places: int = 1
    starts_ms: int = 0
    placed: int = 0


Standing = Literal["coming", "queued", "active", "over"]


def standing(place: Place, document: Glimpse | None) -> Standing:
    """Return where a request stands, given its run's document.

    Without a document it is coming: it may be in some engine's hands.
    """
    if document is None:
        return "coming"
    if document.status in TERMINAL or document.status == UNREADABLE:
        return "over"
    if place.request:
        if document.requested == place.request and not document.placed:
            return "coming"  # Its run does not know yet that it is there.
        if document.placed != place.sequence:
            return "over"  # It has entered by another event, or is another run of that id.
    elif document.requested != place.sequence or document.starts_ms:
        # A second request of the same run: the document was made from the other.
        return "over"
    return "queued" if document.status == "queued" else "active"


class Entry(NamedTuple):
    """A request that is not over, and what its run's document says."""

    place: Place
    at: Standing
    document: Glimpse | None


def granted(entries: Sequence[Entry]) -> Iterator[Place]:
    """Yield the queued ones that may begin, of the lane's first requests that are not over."""
    for before, entry in enumerate(entries):
        if entry.at == "queued" and entry.document and before < entry.document.places:
            yield entry.place


def places_of(entries: Sequence[Entry], places: int) -> int:
    """Return how many requests that are not over have to be found, to know who may begin."""
    return max(places, *(entry.document.places if entry.document else 1 for entry in entries), 1)


def noted(lane: str, entries: Sequence[Entry], over: int, places: int) -> LaneRecord:
    """Return what a lane's record says after a look that found these, and nobody else up to them.

    ``over`` is the last request that was found over. In a lane of one place nobody is passed over:
    engines that know of no more places read the record too.
    """
    requests = tuple(entry.place for entry in entries)
    after = max(over, *(place.sequence for place in requests)) if requests and places > 1 else over
    under_way = tuple(place for place in requests if place.sequence <= after)
    return LaneRecord(lane=lane, after=after, under_way=under_way, waiting=bool(requests))


def set_aside(
    place: Place, lane: str, event: RunRequested | None, moment: Moment, domain: str
) -> RunDocument:
    """Return the document of a request that was handled, and could not be: it ends there."""
    failure = Failure(
        "request_set_aside",
        "the request of this run could not be handled; it is among the dead letters. "
        "Start the run under another id",
        retryable=False,
    )
    return RunDocument(
        run=place.run,
        workflow=event.workflow if event else "",
        definition=event.definition if event else "",
        domain=domain,
        status="failed",
        failure=failure,
        requested=place.sequence,
        requested_ms=moment.ms,
        ended_ms=moment.ms,
        lane=event.lane if event else lane,
        metadata=event.metadata if event else {},
    )
