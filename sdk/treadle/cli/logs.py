"""Logs of engine and worker: lines for a person on standard error, JSON lines with ``--json``."""

from __future__ import annotations

import logging
import sys
from typing import Any

from treadle.cli import output

_FIELDS = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}


def configure(*, as_json: bool) -> None:
    """Send the logs where this command's user looks."""
    handler: logging.Handler
    if as_json:
        handler = _JsonLines()
    else:
        handler = logging.StreamHandler(sys.stderr)
        text = "%(asctime)s.%(msecs)03d %(levelname)-7s %(message)s"
        handler.setFormatter(_Visible(text, datefmt="%H:%M:%S"))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("treadle").setLevel(logging.INFO)


class _Visible(logging.Formatter):
    """Lines for a person: what a handler has put into them cannot steer the terminal."""

    def format(self, record: logging.LogRecord) -> str:
        return output.visible(super().format(record))


class _JsonLines(logging.Handler):
    """One JSON object a record, with whatever fields were given as ``extra``."""

    def emit(self, record: logging.LogRecord) -> None:
        line: dict[str, Any] = {
            "time_ms": round(record.created * 1000),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line.update(
            (key, value if isinstance(value, str | int | float | bool | None) else repr(value))
            for key, value in vars(record).items()
            if key not in _FIELDS
        )
        if record.exc_info:
            line["traceback"] = logging.Formatter().formatException(record.exc_info)
        output.emit(line)
