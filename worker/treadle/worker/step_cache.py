"""What this process knows of steps it has just served, so that the next iteration reads nothing.

An entry is good for one sequence of the step: a task that names another is answered by a read.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

T = TypeVar("T")

ENTRIES_MAX = 4_096
BYTES_MAX = 64 * 1024 * 1024
"""Bound on the states kept in memory, whatever their size: the price of a read is a round trip."""


class StepCache(Generic[T]):
    """Values by run and step; those not used for longest go first."""

    def __init__(self, entries_max: int = ENTRIES_MAX, bytes_max: int = BYTES_MAX) -> None:
        self._entries: OrderedDict[tuple[str, str], tuple[int, T, int]] = OrderedDict()
        self._entries_max = entries_max
        self._bytes_max = bytes_max
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def put(self, run: str, step: str, sequence: int, value: T, size_bytes: int) -> None:
        """Keep what stands when this is the newest sequence of the step."""
        self.drop(run, step)
        self._entries[run, step] = (sequence, value, size_bytes)
        self._size_bytes += size_bytes
        while len(self._entries) > self._entries_max or self._size_bytes > self._bytes_max:
            _, dropped = self._entries.popitem(last=False)
            self._size_bytes -= dropped[2]

    def get(self, run: str, step: str, sequence: int) -> T | None:
        """Return what is kept of a step if it is of that sequence."""
        entry = self._entries.get((run, step))
        if entry is None or entry[0] != sequence:
            return None
        self._entries.move_to_end((run, step))
        return entry[1]

    def drop(self, run: str, step: str) -> None:
        """Forget a step."""
        dropped = self._entries.pop((run, step), None)
        if dropped is not None:
            self._size_bytes -= dropped[2]
