"""Logs of engine and worker: lines for a person on standard error, JSON lines with ``--json``."""

from __future__ import annotations

import logging
import sys

from treadle.cli import log_lines, output


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
    """One JSON object a record: ``log_lines`` says which fields."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            output.emit(log_lines.fields(record))
        except Exception:  # noqa: BLE001 — a record whose text cannot be made
            self.handleError(record)
