"""A log record as one JSON line.

    ts, level, logger, event, msg       always, ``event`` for what Treadle itself says
    trace_id, span_id                   of the span that is current, or that the line is about
    run_id, workflow, step, iteration, attempt, worker_id, error.type     as far as they are known

Whatever else was given as ``extra`` is there under its own name.
"""

from __future__ import annotations

import logging
import re
from datetime import UTC, datetime
from typing import Any

from opentelemetry import trace

from treadle.sdk.tracing import place as places
from treadle.sdk.tracing.place import Place

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "place"}
_EVENT = re.compile(r"[a-z]+(?:\.[a-z][a-z-]*)+")
_USERS = ("treadle.handler", "treadle.tool")
"""Loggers of handlers and tools: what they say is no event of ours."""
_RENAMED = {"run": "run_id", "error_type": "error.type"}
_formatter = logging.Formatter()


def fields(record: logging.LogRecord) -> dict[str, Any]:
    """Return the fields of a record's line."""
    message = record.getMessage()
    line: dict[str, Any] = {
        "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
    }
    event = _event(record.name, message)
    if event:
        line["event"] = event
    line["msg"] = message
    place = _place(record)
    span = _span(place)
    if span is not None:
        line["trace_id"], line["span_id"] = span
    if place is not None:
        line |= place.fields
    for key, value in vars(record).items():
        if key not in _STANDARD:
            is_plain = isinstance(value, str | int | float | bool | None)
            line[_RENAMED.get(key, key)] = value if is_plain else repr(value)
    if record.exc_info and record.exc_info[0] is not None:
        line.setdefault("error.type", record.exc_info[0].__name__)
        line["traceback"] = _formatter.formatException(record.exc_info)
    return line


def _event(logger: str, message: str) -> str:
    if not logger.startswith("treadle.") or logger in _USERS:
        return ""
    found = _EVENT.match(message)
    return found[0] if found else ""


def _place(record: logging.LogRecord) -> Place | None:
    """Return where a record belongs: as it says, as an argument of it says, or where it is made."""
    named = getattr(record, "place", None)
    if isinstance(named, Place):
        return named
    for each in record.args if isinstance(record.args, tuple) else ():
        found = getattr(each, "place", None)
        if isinstance(found, Place):
            return found
    return places.current()


def _span(place: Place | None) -> tuple[str, str] | None:
    current = trace.get_current_span().get_span_context()
    if current.is_valid and (place is None or place == places.current()):
        # What a handler has opened is narrower than its execution.
        return trace.format_trace_id(current.trace_id), trace.format_span_id(current.span_id)
    return place.span if place is not None else None
