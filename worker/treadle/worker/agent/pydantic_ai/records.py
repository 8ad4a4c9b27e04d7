"""The journal of a run of pydantic-ai: what each of its operations came to, in order.

Operations are told apart by name and count: the library's names are stored, so they are
compatibility data. ``name`` is the library's, ``nth`` counts those of one name from 0.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from treadle.worker.agent.core.entries import ReplyVerdict


class Opened(msgspec.Struct, frozen=True, tag="opened", kw_only=True):
    """The run began."""

    agent: str
    prompt: msgspec.Raw


class Started(msgspec.Struct, frozen=True, tag="started", kw_only=True):
    """A call that must not happen twice is about to be made."""

    name: str
    nth: int
    tool: str
    call_id: str
    args_hash: str


class Raised(msgspec.Struct, frozen=True, tag="raised", kw_only=True):
    """Such a call has raised, so whether it took effect is not known."""

    name: str
    nth: int
    error: str


class Decided(msgspec.Struct, frozen=True, tag="decided", omit_defaults=True, kw_only=True):
    """A person has decided what becomes of such a call."""

    name: str
    nth: int
    sequence: int
    """Of the message that said so: it counts once."""
    verdict: ReplyVerdict
    text: str = ""
    by: str = ""


class Completed(msgspec.Struct, frozen=True, tag="completed", omit_defaults=True, kw_only=True):
    """An operation has a result."""

    name: str
    nth: int
    value: msgspec.Raw
    args_hash: str = ""


class Finished(msgspec.Struct, frozen=True, tag="finished", kw_only=True):
    """The run has an output."""

    output: msgspec.Raw


Entry = Opened | Started | Raised | Decided | Completed | Finished


class Key(NamedTuple):
    """Which operation of the run."""

    name: str
    nth: int


class Story:
    """What the journal says."""

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        self.opened: Opened | None = None
        self.finished: Finished | None = None
        self.started: dict[Key, Started] = {}
        self.raised: dict[Key, str] = {}
        self.decided: dict[Key, Decided] = {}
        self.completed: dict[Key, Completed] = {}
        self.heard = 0
        """Sequence of the newest message that has decided something."""
        for entry in entries:
            self.add(entry)

    def add(self, entry: Entry) -> None:
        """Take the next entry."""
        match entry:
            case Opened():
                self.opened = entry
            case Finished():
                self.finished = entry
            case Started():
                # Started again, after a person has agreed: undecided once more.
                key = Key(entry.name, entry.nth)
                self.started[key] = entry
                self.decided.pop(key, None)
                self.raised.pop(key, None)
            case Raised():
                self.raised[Key(entry.name, entry.nth)] = entry.error
            case Decided():
                self.decided[Key(entry.name, entry.nth)] = entry
                self.heard = max(self.heard, entry.sequence)
            case Completed():
                self.completed[Key(entry.name, entry.nth)] = entry

    @property
    def unfinished(self) -> dict[Key, Started]:
        """Calls that were started, without a result and without a decision."""
        return {
            key: call
            for key, call in self.started.items()
            if key not in self.completed and key not in self.decided
        }
