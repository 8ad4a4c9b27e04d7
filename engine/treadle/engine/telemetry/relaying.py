"""The log of a process beside the engine, which the engine's own logging says.

    child:  record ──> a line of JSON on standard error ──> engine:  record, to its handlers

So one format, one level and one destination hold for both, whatever program the engine is in.
"""

from __future__ import annotations

import asyncio
import logging
import sys

import msgspec

LINE_BYTES_MAX = 1024 * 1024
"""Of a line that is read; a record's text is far below."""
TEXT_CHARS_MAX = 16 * 1024

_log = logging.getLogger("treadle.telemetry")


class Line(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A record on its way. ``created`` is seconds since the epoch."""

    name: str
    level: int
    message: str
    created: float


_lines = msgspec.json.Decoder(Line)


class RelayHandler(logging.Handler):
    """Writes what this process logs for the one that has started it."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            # With the traceback, if it has one.
            text = self.format(record)[:TEXT_CHARS_MAX]
            line = Line(record.name, record.levelno, text, record.created)
            sys.stderr.buffer.write(msgspec.json.encode(line) + b"\n")
            sys.stderr.buffer.flush()
        except Exception:  # noqa: BLE001 — a record whose text cannot be made
            self.handleError(record)


async def relay(stream: asyncio.StreamReader) -> None:
    """Log what the process writes, until it ends; what is no record of it is a warning."""
    while line := await _line(stream):
        try:
            said = _lines.decode(line)
        except msgspec.DecodeError:
            text = line.decode(errors="replace").rstrip()
            if text:
                _log.warning("telemetry.projector-said %s", text[:TEXT_CHARS_MAX])
            continue
        logger = logging.getLogger(said.name)
        if logger.isEnabledFor(said.level):
            record = logger.makeRecord(said.name, said.level, "", 0, said.message, (), None)
            record.created, record.msecs = said.created, said.created % 1 * 1000
            logger.handle(record)


async def _line(stream: asyncio.StreamReader) -> bytes:
    try:
        return await stream.readline()
    except ValueError:  # Longer than the limit: what was read of it is dropped.
        return b"\n"
