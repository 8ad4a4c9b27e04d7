"""The output stream of a run: what handlers and agents say while they work, chunk by chunk.

    worker --Text, Thinking, Progress, ToolStarted, ...--> <ns>_STREAM --> readers

A chunk names the iteration and the attempt that said it, and its number within that attempt:
numbers grow, and may leave some out. Only what an attempt says is stored, so a handler that says
nothing stores nothing. The first chunk of an attempt is ``AttemptBegan``. If an earlier attempt
of the iteration had said something, ``Superseded`` comes before it. A reader follows these rules
with ``client/transcript.py``.

Chunks are for watchers. They are kept for some days, and nothing is decided on them.
"""

from __future__ import annotations

import msgspec

from treadle.sdk.messages import NO_RAW


class _Chunk(
    msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, tag_field="kind", gc=False
):
    iteration: int = 0
    attempt: int = 1
    n: int = 0
    """Number within the attempt."""


class AttemptBegan(_Chunk, frozen=True, tag="attempt.began", kw_only=True):
    """An execution begins to speak: what was said in its iteration before does not stand."""

    worker: str = ""
    """The process, as ``Client.processes`` names it."""


class Superseded(_Chunk, frozen=True, tag="superseded", kw_only=True):
    """What was said in the iteration does not stand: by earlier attempts, and by this one from
    number ``since`` on."""

    since: int = 0


class Text(_Chunk, frozen=True, tag="text", kw_only=True):
    """More of the text of the answer."""

    text: str


class Thinking(_Chunk, frozen=True, tag="thinking", kw_only=True):
    """More of the model's reasoning."""

    text: str


class Progress(_Chunk, frozen=True, tag="progress", kw_only=True):
    """What a handler or a tool has reported."""

    value: msgspec.Raw = NO_RAW
    call: str = ""
    """Of a tool: the id of its call."""


class TurnStarted(_Chunk, frozen=True, tag="turn.started", kw_only=True):
    """The model is asked."""

    turn: int = 0
    purpose: str = "turn"
    """``turn``, or ``final`` for the last answer at a bound."""


class TurnEnded(_Chunk, frozen=True, tag="turn.ended", kw_only=True):
    """The turn is over and the run goes on."""

    turn: int = 0


class ToolStarted(_Chunk, frozen=True, tag="tool.started", kw_only=True):
    """A call of a tool begins."""

    id: str
    name: str


class ToolEnded(_Chunk, frozen=True, tag="tool.ended", kw_only=True):
    """A call of a tool has ended."""

    id: str
    name: str
    status: str


class Waiting(_Chunk, frozen=True, tag="waiting", kw_only=True):
    """People have to answer before the run goes on."""

    calls: tuple[str, ...] = ()
    """Names of the tools whose calls wait."""


class Stopped(_Chunk, frozen=True, tag="stopped", kw_only=True):
    """The agent has stopped."""

    reason: str
    detail: str = ""


LogValue = str | int | float | bool | None

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40, "critical": 50}
"""Levels of log lines, with their numbers."""


class Logged(_Chunk, frozen=True, tag="logged", kw_only=True):
    """A log line of a handler or a tool."""

    level: str = "info"
    """``debug``, ``info``, ``warning``, ``error`` or ``critical``."""
    logger: str = ""
    text: str = ""
    time_ms: int = 0
    """When it was logged, by the worker's clock; milliseconds since the epoch."""
    fields: dict[str, LogValue] = {}
    """What was given as ``extra``."""
    traceback: str = ""


class Dropped(_Chunk, frozen=True, tag="dropped", kw_only=True):
    """So many pieces were said here and could not be stored."""

    count: int


class Unknown(_Chunk, frozen=True, tag="unknown", kw_only=True):
    """A chunk that this version cannot read. Never stored: readers make it."""

    bytes: int = 0


Chunk = (
    AttemptBegan
    | Superseded
    | Text
    | Thinking
    | Progress
    | TurnStarted
    | TurnEnded
    | ToolStarted
    | ToolEnded
    | Waiting
    | Stopped
    | Logged
    | Dropped
    | Unknown
)


class _Place(msgspec.Struct, frozen=True):
    iteration: int = 0
    attempt: int = 1
    n: int = 0


_decoder: msgspec.json.Decoder[Chunk] = msgspec.json.Decoder(Chunk)
_places = msgspec.json.Decoder(_Place)
_encoder = msgspec.json.Encoder()


def encode(chunk: Chunk) -> bytes:
    """Return a chunk as it is stored."""
    return _encoder.encode(chunk)


def decode(raw: bytes) -> Chunk:
    """Return a stored chunk; ``Unknown`` if it is of a later version, or none."""
    try:
        return _decoder.decode(raw)
    except (ValueError, RecursionError):
        pass
    try:
        place = _places.decode(raw)
    except (ValueError, RecursionError):
        place = _Place(-1, 0, 0)
    return Unknown(iteration=place.iteration, attempt=place.attempt, n=place.n, bytes=len(raw))
