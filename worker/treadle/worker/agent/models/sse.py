"""Server-sent events from bytes, as the HTML standard reads them. Pure.

An event that has not been ended by an empty line is never given out: a stream that was cut off
must not look as if it had said something.
"""

from __future__ import annotations

import re
from typing import NamedTuple

EVENT_BYTES_MAX = 64 * 1024 * 1024
"""No answer of a model comes near it; a server that never ends an event does."""

# A carriage return at the very end may be the first half of "\r\n": it waits for what follows.
_LINE_END = re.compile(rb"\r\n|\n|\r(?=[^\n])")


class SseEvent(NamedTuple):
    """One event: its name, empty if it has none, and its data."""

    name: str
    data: str


class SseDecoder:
    """Feed it chunks as they arrive; it returns the events they complete."""

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._size_bytes = 0
        self._name = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events completed by ``chunk``. Raises ``ValueError`` for what is no text."""
        is_after_return = bool(self._parts) and self._parts[-1].endswith(b"\r")
        self._parts.append(chunk)
        self._size_bytes += len(chunk)
        if self._size_bytes > EVENT_BYTES_MAX:
            raise ValueError(f"an event of the stream is larger than {EVENT_BYTES_MAX} bytes")
        if not is_after_return and b"\n" not in chunk and b"\r" not in chunk:
            return []
        *lines, rest = _LINE_END.split(b"".join(self._parts))
        self._parts = [rest] if rest else []
        self._size_bytes = len(rest) + sum(map(len, self._data))
        return [event for line in lines if (event := self._line(line.decode("utf-8")))]

    def _line(self, line: str) -> SseEvent | None:
        if line:
            field, _, value = line.partition(":")
            value = value.removeprefix(" ")
            if field == "data":
                self._data.append(value)
                self._size_bytes += len(value)
            elif field == "event":
                self._name = value
            return None
        event = SseEvent(self._name, "\n".join(self._data)) if self._data else None
        self._name, self._data = "", []
        return event
