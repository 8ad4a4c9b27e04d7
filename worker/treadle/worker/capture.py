"""What handlers log, put on the run's output stream as well: ``treadle run logs`` reads it.

    logging.Logger --> root's handlers --> Capture --> the execution that logs --> output stream

An execution is known by a context variable, so it counts in threads that it starts through
asyncio too. Of one execution so many lines and characters are kept, and no more. Nothing of it
goes to telemetry.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from treadle.sdk.chunks import LEVELS, Logged, LogValue
from treadle.sdk.errors import HandlerError
from treadle.worker.failure import bounded

if TYPE_CHECKING:
    from treadle.worker.execution import Call

LINES_MAX = 1_000
CHARS_MAX = 400_000
"""Of one execution."""
LINE_CHARS_MAX = 8_000
FIELDS_MAX = 20
FIELD_CHARS_MAX = 500
OFF = "off"

_CONTEXTS = ("treadle.handler", "treadle.tool")
"""What ``ctx.logger`` writes to: all of it is captured."""
_OWN = ("treadle.bus", "treadle.engine", "treadle.telemetry", "treadle.worker")
"""What Treadle itself logs is none of the handler's."""
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "place"}
_PLACE = frozenset({"run", "step", "iteration", "attempt"})
_formatter = logging.Formatter()


class Lines:
    """The log lines of one execution."""

    __slots__ = ("_call", "_chars", "_count", "_is_full", "_lock")

    def __init__(self, call: Call) -> None:
        self._call = call
        self._count = 0
        self._chars = 0
        self._is_full = False
        # Again by the same thread: a text may log while it is made.
        self._lock = threading.RLock()

    def take(self, record: logging.LogRecord) -> None:
        """Put a record on the stream, soon; from any thread."""
        with self._lock:
            if self._is_full:
                return
            chunk = _chunk(record)
            self._count += 1
            self._chars += len(chunk.text) + len(chunk.traceback)
            if self._count > LINES_MAX or self._chars > CHARS_MAX:
                self._is_full = True
                chunk = Logged(
                    level="warning",
                    logger=_CONTEXTS[0],
                    text=f"more was logged and is not kept here: of one execution {LINES_MAX:,} "
                    f"lines or {CHARS_MAX:,} characters are",
                    time_ms=chunk.time_ms,
                )
            self._call.say_from_anywhere(chunk)


current: ContextVar[Call | None] = ContextVar("treadle-call", default=None)
_making = threading.Lock()


def level_of(name: str) -> int | None:
    """Return the number of a level's name, None for ``off``; raise ``HandlerError`` for neither."""
    if name.lower() == OFF:
        return None
    if name.lower() not in LEVELS:
        raise HandlerError(
            f"capture_logs of the worker is {name!r}, which is no level. Give one of "
            f"{', '.join(LEVELS)}, or {OFF} to capture nothing."
        )
    return LEVELS[name.lower()]


@contextmanager
def capturing(level: int | None) -> Generator[None]:
    """Capture while the block runs: ``ctx.logger`` whole, other loggers from the level on."""
    if level is None:
        yield
        return
    handler = Capture(level)
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


class Capture(logging.Handler):
    """The handler of the root logger."""

    def __init__(self, level: int) -> None:
        super().__init__()
        self._least = level

    def emit(self, record: logging.LogRecord) -> None:
        call = current.get()
        if call is not None and self._is_wanted(record):
            try:
                _lines_of(call).take(record)
            except Exception:  # noqa: BLE001 — a record whose text cannot be made
                self.handleError(record)
        last = logging.lastResort
        if last is not None and record.levelno >= last.level and not _is_handled(record.name):
            # Without this handler Python would have printed it.
            last.handle(record)

    def _is_wanted(self, record: logging.LogRecord) -> bool:
        if record.name.startswith(_CONTEXTS):
            return True
        return record.levelno >= self._least and not record.name.startswith(_OWN)


def _lines_of(call: Call) -> Lines:
    if call.lines is None:
        with _making:  # Threads of one execution share its bounds.
            call.lines = call.lines or Lines(call)
    return call.lines


def _is_handled(name: str) -> bool:
    logger: logging.Logger | None = logging.getLogger(name)
    while logger is not None:
        if any(not isinstance(each, Capture) for each in logger.handlers):
            return True
        logger = logger.parent if logger.propagate else None
    return False


def _chunk(record: logging.LogRecord) -> Logged:
    trace = _formatter.formatException(record.exc_info) if record.exc_info else ""
    return Logged(
        level=_level(record.levelno),
        logger=bounded(record.name, FIELD_CHARS_MAX),
        text=bounded(record.getMessage(), LINE_CHARS_MAX),
        time_ms=round(record.created * 1000),
        fields=_fields(record),
        traceback=bounded(trace, LINE_CHARS_MAX),
    )


def _level(number: int) -> str:
    """Return the name of the level, of others that of the next one below."""
    return max(
        (name for name in LEVELS if LEVELS[name] <= number), key=LEVELS.__getitem__, default="debug"
    )


def _fields(record: logging.LogRecord) -> dict[str, LogValue]:
    found: dict[str, LogValue] = {}
    for name, value in vars(record).items():
        if name in _STANDARD or name in _PLACE or len(found) == FIELDS_MAX:
            continue
        if isinstance(value, bool | float | None) or (
            isinstance(value, int) and abs(value) < 1 << 53
        ):
            found[name] = value
        else:
            found[name] = bounded(str(value), FIELD_CHARS_MAX)
    return found
