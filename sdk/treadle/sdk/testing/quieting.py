"""What many lives of one workflow log, said once each: the hundredth says nothing new."""

from __future__ import annotations

import logging
from collections.abc import Generator
from contextlib import contextmanager

ROOT = "treadle"


class _Once(logging.Filter):
    def __init__(self) -> None:
        super().__init__()
        self._said: set[tuple[str, int, str]] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        said = (record.name, record.levelno, record.getMessage())
        if said in self._said:
            return False
        self._said.add(said)
        return True


@contextmanager
def logged_once() -> Generator[None]:
    """Let each line of Treadle's loggers pass once, for as long as it lasts."""
    once = _Once()
    names = [name for name in logging.root.manager.loggerDict if name.split(".")[0] == ROOT]
    # A filter is asked about what is logged to that logger itself, and not below it.
    loggers = [logging.getLogger(name) for name in names]
    for logger in loggers:
        logger.addFilter(once)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(once)
