"""Small values that all workers of a namespace share, changed by compare-and-set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from treadle.sdk.bus.jetstream import JetStream
from treadle.sdk.errors import ServerUnsuitable
from treadle.sdk.subjects import Subjects
from treadle.worker.lines import Lines, LinesInMemory, StoredLines


class SharedValues(Protocol):
    """Where they are kept."""

    @property
    def lines(self) -> Lines:
        """Who waits for one of them."""
        ...

    async def read(self, key: str) -> tuple[bytes, int]:
        """Return a value and its revision; nothing and 0 if there is none."""
        ...

    async def write(
        self, key: str, value: bytes, revision: int, is_mine: Callable[[bytes], bool]
    ) -> int:
        """Store a value over a revision; return its own, or 0 if another stands.

        ``is_mine`` recognises this write if its acknowledgement was lost.
        """
        ...


class StoredValues:
    """They are in the bucket of limits; an older engine has made none, and then nothing is kept."""

    def __init__(self, js: JetStream, subjects: Subjects) -> None:
        self._js = js
        self._subjects = subjects
        self.lines: Lines = StoredLines(js, subjects)

    async def read(self, key: str) -> tuple[bytes, int]:
        s = self._subjects
        try:
            stored = await self._js.last(s.limits_stream, s.provider(key))
        except ServerUnsuitable:
            return b"", 0
        return (stored.data, stored.sequence) if stored is not None else (b"", 0)

    async def write(
        self, key: str, value: bytes, revision: int, is_mine: Callable[[bytes], bool]
    ) -> int:
        s = self._subjects
        try:
            result = await self._js.compare_and_set(
                s.limits_stream, s.provider(key), value, expected=revision, is_mine=is_mine
            )
        except ServerUnsuitable:
            return 1
        return result.stored.sequence if result.stored is not None else 0


class ValuesInMemory:
    """They are in this process: for an agent that runs in it, and for tests."""

    def __init__(self) -> None:
        self._values: dict[str, tuple[bytes, int]] = {}
        self.lines: Lines = LinesInMemory()

    async def read(self, key: str) -> tuple[bytes, int]:
        return self._values.get(key, (b"", 0))

    async def write(
        self, key: str, value: bytes, revision: int, is_mine: Callable[[bytes], bool]
    ) -> int:
        if self._values.get(key, (b"", 0))[1] != revision:
            return 0
        self._values[key] = (value, revision + 1)
        return revision + 1
