"""What has arrived for a run and was not heard yet: words between turns, answers of people.

Words are for the agent itself. An answer about a call of a sub-agent names the calls that lead to
it, ``call/call``, and is handed down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from treadle.worker.agent.core.nested import MARK
from treadle.worker.agent.ports import Inbox, Letter, LetterKind

_KINDS: tuple[LetterKind, ...] = ("steer", "follow_up", "reply")


class Letters:
    """Reads an inbox once, and keeps of it what nobody has taken."""

    def __init__(self, inbox: Inbox, seen: Mapping[str, int]) -> None:
        self._inbox = inbox
        self._unheard: list[Letter] = []
        self._read_to = min((seen.get(kind, 0) for kind in _KINDS), default=0)

    @property
    def has_steering(self) -> bool:
        """True while words lie there that the model has to hear first."""
        return any(letter.kind == "steer" for letter in self._unheard)

    @property
    def unheard(self) -> int:
        """Words for the agent itself that were read and not taken."""
        return sum(letter.kind != "reply" for letter in self._unheard)

    @property
    def read_to(self) -> int:
        """Position in the inbox up to which all was read."""
        return self._read_to

    def handed_down(self, call_id: str, after: int) -> list[Letter]:
        """Return the answers after that position which are for the sub-agent of that call."""
        found: list[Letter] = []
        for letter in self._unheard:
            first, mark, rest = letter.call_id.partition(MARK)
            if not mark or first != call_id or letter.sequence <= after:
                continue
            if letter.reply is None:
                found.append(msgspec.structs.replace(letter, about=rest))
            else:
                reply = msgspec.structs.replace(letter.reply, call_id=rest)
                found.append(msgspec.structs.replace(letter, reply=reply))
        return found

    async def look(self, seen: Mapping[str, int]) -> None:
        """See what has arrived, and leave it for those who take it."""
        for letter in await self._inbox.take(self._read_to):
            self._read_to = max(self._read_to, letter.sequence)
            if letter.sequence > seen.get(letter.kind, 0):
                self._unheard.append(letter)

    async def take(self, kind: LetterKind, seen: Mapping[str, int]) -> list[Letter]:
        """Take all of a kind that has arrived and was not heard yet."""
        await self.look(seen)
        taken = [letter for letter in self._unheard if letter.kind == kind and _is_own(letter)]
        self._unheard = [letter for letter in self._unheard if letter not in taken]
        return taken


class NestedInbox:
    """What a sub-agent gets of the letters of the agent above it: answers about its calls."""

    def __init__(self, outer: Letters, call_id: str) -> None:
        self._outer = outer
        self._call_id = call_id

    async def take(self, after: int) -> Sequence[Letter]:
        """Return what the agent above has read for it; nothing is read anew."""
        return self._outer.handed_down(self._call_id, after)


def _is_own(letter: Letter) -> bool:
    return MARK not in letter.call_id


def newest(letters: Sequence[Letter]) -> int:
    """Return the sequence of the newest of them; 0 if there is none."""
    return max((letter.sequence for letter in letters), default=0)
