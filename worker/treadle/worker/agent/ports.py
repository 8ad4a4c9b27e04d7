"""What a driver needs of the outside: a journal for entries, and an inbox for people's words."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Literal, Protocol

import msgspec

from treadle.sdk.asks import Reply
from treadle.worker.agent.core.entries import Entry

LetterKind = Literal["steer", "follow_up", "reply"]


class Letter(msgspec.Struct, frozen=True, kw_only=True):
    """One message to the agent."""

    sequence: int
    kind: LetterKind
    text: str = ""
    """Of a reply that is none: what is wrong with it."""
    reply: Reply | None = None
    about: str = ""
    """Of a reply that is none: the call it names."""

    @property
    def call_id(self) -> str:
        """The call that a reply is about."""
        return self.about if self.reply is None else self.reply.call_id


class Journal(Protocol):
    """Where the entries of a run are kept."""

    async def append(self, entries: Sequence[Entry]) -> None:
        """Store the entries, in order; when this returns they outlive the process."""
        ...


class Inbox(Protocol):
    """Where people's words to the run arrive."""

    async def take(self, after: int) -> Sequence[Letter]:
        """Return what has arrived after that position, in order; never waits."""
        ...


class MemoryJournal:
    """Entries in a list."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []

    async def append(self, entries: Sequence[Entry]) -> None:
        self.entries.extend(entries)


class MemoryInbox:
    """Words that this process puts in."""

    def __init__(self) -> None:
        self._letters: list[Letter] = []

    def steer(self, text: str) -> None:
        """Say something that is heard before the next model call."""
        self._put("steer", text=text)

    def follow_up(self, text: str) -> None:
        """Say something that is heard when the run would end, and goes on."""
        self._put("follow_up", text=text)

    def reply(self, reply: Reply) -> None:
        """Answer a call that waits for a person."""
        self._put("reply", reply=reply)

    def _put(self, kind: LetterKind, *, text: str = "", reply: Reply | None = None) -> None:
        # By the time: what another inbox of the run has brought before is not taken for this.
        last = self._letters[-1].sequence if self._letters else 0
        sequence = max(last + 1, time.time_ns() // 1_000)
        self._letters.append(Letter(sequence=sequence, kind=kind, text=text, reply=reply))

    async def take(self, after: int) -> Sequence[Letter]:
        return [letter for letter in self._letters if letter.sequence > after]


Clock = Callable[[], int]


def now_ms() -> int:
    """Return the time, in milliseconds since the epoch."""
    return time.time_ns() // 1_000_000
