"""What is stored of a model's provider: its budget, and those who wait for it.

Times are milliseconds since the epoch. What a record says of the past means nothing.
"""

from __future__ import annotations

from typing import Literal

import msgspec

ProviderLine = Literal["a", "b", "c"]
"""``a``  were refused by a 429 after their turn: first of all, by when they asked first
``b``  wait for their turn, in the order in which they came
``c``  had their turn and did not come: nobody waits for them, and they go first when they do"""


class ProviderSaid(msgspec.Struct, frozen=True):
    """What a provider said is left of a limit, as it fills evenly."""

    left: float
    """Less what was reserved since."""
    limit: int
    at_ms: float
    full_ms: float
    """When it said that all is there again: from then on this says nothing."""
    pace_ms: float
    """In how long one comes back."""

    def left_at(self, now_ms: float) -> float:
        """Return how many are left then; less than none if more was reserved than it said."""
        if self.full_ms <= now_ms:
            return self.limit
        back = (now_ms - self.at_ms) / self.pace_ms if self.pace_ms else self.limit
        return min(self.limit, self.left + max(0.0, back))

    def free_at_ms(self, count: float, now_ms: float) -> float:
        """Return from when so much is left."""
        if self.full_ms <= now_ms:
            return now_ms
        missing = min(count, self.limit) - self.left
        return min(self.full_ms, max(now_ms, self.at_ms + missing * self.pace_ms))


class ProviderRecord(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """What is stored of a provider, once for all workers."""

    name: str
    requests_per_minute: int = 0
    """As whoever asked last has it; 0 is no bound."""
    tokens_per_minute: int = 0
    requests_full_ms: float = 0
    tokens_full_ms: float = 0
    requests: ProviderSaid | None = None
    tokens: ProviderSaid | None = None
    held_until_ms: float = 0
    held_by: str = ""
    """Why nobody calls until then."""
    is_waited_for: bool = False
    """Somebody may stand in a line."""
    called: dict[str, int] = {}
    """Of those in line: who was told to come and look, by place, and when its turn came; 0
    if it has not come."""
    line_ms: float = 0
    """When the last one in line was told to come by itself."""
    number: int = 0
    """Of the last reservation."""
    lows: tuple[tuple[int, float], ...] = ()
    """How far the bucket was from full before a reservation, in ms, with its number: only those
    than which no later one is lower."""
    reserved_tokens: int = 0
    """Of calls under way, for people: what killed workers left is among it for a minute."""
    write: str = ""
    """Nonce of the write: recognises one whose acknowledgement was lost."""


class ProviderWaiter(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """Who waits in a line."""

    run: str = ""
    step: str = ""
    """Or the name of a chunk of a map."""
    type: str = ""
    domain: str = ""
    """'' and no type: it waits in its process."""
    tokens: int = 0
    since_ms: int = 0
    """When it asked first."""

    @property
    def place(self) -> str:
        """What it is called in the record: one step waits once, however many calls it makes."""
        return f"{self.domain}.{self.run}.{self.step}"
