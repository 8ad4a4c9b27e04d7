"""What has arrived for a run and was not heard yet: words between turns, answers of people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from treadle.worker.agent.ports import Inbox, Letter, LetterKind

_KINDS: tuple[LetterKind, ...] = ("steer", "follow_up", "reply")


class Letters:
    """Reads an inbox once, and keeps of it what nobody has taken."""

    def __init__(self, inbox: Inbox, seen: Mapping[str, int]) -> None:
        self._inbox = inbox
        self._unheard: list[Letter] = []
        self._read_to = min((seen.get(kind, 0) for kind in _KINDS), default=0)

    @property
    def read_to(self) -> int:
        """Position up to which the inbox was read."""
        return self._read_to

    @property
    def has_steering(self) -> bool:
        """True while words lie there that the model has to hear first."""
        return any(letter.kind == "steer" for letter in self._unheard)

    async def look(self, seen: Mapping[str, int]) -> None:
        """See what has arrived, and leave it for those who take it."""
        for letter in await self._inbox.take(self._read_to):
            self._read_to = max(self._read_to, letter.sequence)
            if letter.sequence > seen.get(letter.kind, 0):
                self._unheard.append(letter)

    async def take(self, kind: LetterKind, seen: Mapping[str, int]) -> list[Letter]:
        """Take all of a kind that has arrived and was not heard yet."""
        await self.look(seen)
        taken = [letter for letter in self._unheard if letter.kind == kind]
        self._unheard = [letter for letter in self._unheard if letter.kind != kind]
        return taken


def newest(letters: Sequence[Letter]) -> int:
    """Return the sequence of the newest of them; 0 if there is none."""
    return max((letter.sequence for letter in letters), default=0)
