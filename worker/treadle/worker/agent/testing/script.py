"""What the fake answers: turns, how a turn can go wrong, and the order they are used in."""

from __future__ import annotations

import datetime
import email.utils
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from treadle.worker.agent.testing.blocks import Block, ToolUse
from treadle.worker.agent.testing.gate import Gate
from treadle.worker.agent.testing.journal import RecordedRequest
from treadle.worker.agent.testing.refusal import KIND_OF_STATUS
from treadle.worker.agent.testing.wire import Json


@dataclass(frozen=True)
class Place:
    """A place in a body: after so many events, after the first of a kind, or after so many bytes.

    A stream's events are ``message_start``; for each block ``content_block_start``, a ``ping``
    after the first of these, its ``content_block_delta``s and ``content_block_stop``;
    ``message_delta``; ``message_stop``. An answer that is not streamed has no events: there 0 is
    the place before the body and every other event the middle of it.
    """

    event: int | str = 0
    size_bytes: int | None = None


@dataclass(frozen=True)
class Cut:
    """The server closes the socket at ``place``; with ``reset`` it is torn down hard."""

    place: Place
    reset: bool = False


@dataclass(frozen=True)
class Stall:
    """The server stops sending at ``place`` until ``gate`` is open."""

    place: Place
    gate: Gate


@dataclass(frozen=True)
class Break:
    """The stream goes on with ``event: error`` at ``place`` and ends there."""

    place: Place
    kind: str
    message: str


@dataclass(frozen=True)
class NoStop:
    """The stream ends well-formed, but without its ``message_stop``."""


Fault = Cut | Stall | Break | NoStop


@dataclass(frozen=True)
class Answer:
    """A message of the model."""

    blocks: tuple[Block, ...]
    stop_reason: str
    stop_sequence: str | None = None
    stop_details: Json | None = None
    usage: Mapping[str, int] = field(default_factory=dict[str, int])
    """These replace the computed numbers."""
    fault: Fault | None = None
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Failure:
    """An error instead of a message."""

    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass(frozen=True)
class Raw:
    """A body of one's own, sent piece by piece."""

    pieces: tuple[bytes | Gate, ...]
    cut: bool = False


@dataclass(frozen=True)
class HangUp:
    """The socket is closed without an answer."""


Turn = Answer | Failure | Raw | HangUp
"""What the fake does with one accepted request."""


def turn(
    *blocks: Block,
    stop_reason: str | None = None,
    stop_sequence: str | None = None,
    stop_details: Json | None = None,
    usage: Mapping[str, int] | None = None,
    fault: Fault | None = None,
    headers: Mapping[str, str] | None = None,
) -> Answer:
    """Return an answer. The stop reason is ``tool_use`` with a call in it, else ``end_turn``."""
    if stop_reason is None:
        stop_reason = "tool_use" if any(isinstance(b, ToolUse) for b in blocks) else "end_turn"
    return Answer(
        blocks, stop_reason, stop_sequence, stop_details, usage or {}, fault, headers or {}
    )


def error(
    status: int,
    type: str | None = None,
    message: str | None = None,
    *,
    retry_after: float | datetime.datetime | str | None = None,
    headers: Mapping[str, str] | None = None,
) -> Failure:
    """Return an error; ``retry_after`` is in seconds, a time, or the header as it is."""
    kind = type or KIND_OF_STATUS.get(status, "api_error")
    found = dict(headers or {})
    if isinstance(retry_after, datetime.datetime):
        at = retry_after.astimezone(datetime.UTC)
        found["retry-after"] = email.utils.format_datetime(at, usegmt=True)
    elif retry_after is not None:
        found["retry-after"] = str(retry_after)
    return Failure(status, kind, message or f"scripted {kind}", found)


def raw_sse(*pieces: bytes | Gate, cut: bool = False) -> Raw:
    """Return a stream of exactly these bytes; the server stops at each gate until it is open.

    With ``cut`` the socket is closed after the last piece, else the body ends properly.
    """
    return Raw(pieces, cut)


def hang_up() -> HangUp:
    """Return a turn that closes the socket without an answer."""
    return HangUp()


def cut_after(event: int | str = 0, *, size_bytes: int | None = None, reset: bool = False) -> Cut:
    """Close the socket after so many events, the first of a kind, or so many bytes."""
    return Cut(Place(event, size_bytes), reset)


def stall_after(
    event: int | str = 0, *, size_bytes: int | None = None, gate: Gate | None = None
) -> Stall:
    """Stop sending until ``gate`` is open; without a gate, until the fake is closed."""
    return Stall(Place(event, size_bytes), gate or Gate())


def error_after(
    event: int | str, type: str = "overloaded_error", message: str = "Overloaded"
) -> Break:
    """Send ``event: error`` in the stream; its HTTP status stays 200."""
    return Break(Place(event), type, message)


def no_message_stop() -> NoStop:
    """Leave out ``message_stop``."""
    return NoStop()


Responder = Callable[[RecordedRequest], Turn]


class Script:
    """Turns used in order, or a function of the request."""

    def __init__(self, turns: Iterable[Turn] | Responder) -> None:
        self._lock = threading.Lock()
        self._responder = turns if callable(turns) else None
        self._turns: list[Turn] = [] if callable(turns) else list(turns)
        self.is_exhausted = False
        """True once a request came for which no turn was left."""

    @property
    def remaining(self) -> int:
        """Turns not used yet; 0 for a function."""
        return len(self._turns)

    def extend(self, turns: Sequence[Turn]) -> None:
        """Add turns after those that are left."""
        if self._responder is not None:
            raise ValueError("the script is a function, so no turns can be added to it.")
        with self._lock:
            self._turns.extend(turns)

    def next(self, request: RecordedRequest) -> Turn | None:
        """Return what to do about a request, or ``None`` if the script has run out."""
        if self._responder is not None:
            return self._responder(request)
        with self._lock:
            if self._turns:
                return self._turns.pop(0)
            self.is_exhausted = True
            return None
