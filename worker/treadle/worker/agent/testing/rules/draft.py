"""A request as the rules look at it: its body, and its conversation with equal roles merged."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from treadle.worker.agent.testing.seal import Seal
from treadle.worker.agent.testing.wire import Json, as_object, blocks_of, objects


@dataclass(frozen=True)
class Limits:
    """What the fake is strict about, and how much it takes."""

    context_window: int
    merge_roles: bool = True
    """Consecutive messages of one role count as one, as in the API of today."""
    prefill: bool = True
    """The last message may be the assistant's. Current models refuse that."""


@dataclass(frozen=True)
class Placed:
    """A block and the path by which errors name it."""

    message: int
    """Index of its message in the request."""
    path: str
    block: Json

    @property
    def kind(self) -> str:
        """The block's type."""
        return str(self.block.get("type"))


@dataclass(frozen=True)
class Spoken:
    """What one side says in one go."""

    role: str
    index: int
    """Of its first message in the request."""
    blocks: list[Placed]

    def of_kind(self, *kinds: str) -> list[Placed]:
        """Return its blocks of these types."""
        return [placed for placed in self.blocks if placed.kind in kinds]


@dataclass(frozen=True)
class Draft:
    """A request that is being checked."""

    body: Json
    limits: Limits
    seal: Seal
    paused: tuple[list[Json], ...] = ()
    """Contents of this fake that ended with ``pause_turn``: they are sent back as they are."""
    is_count: bool = False
    """Asked to count its tokens only."""

    @cached_property
    def conversation(self) -> list[Spoken]:
        """The messages, consecutive ones of the same role as one."""
        merged: list[Spoken] = []
        for index, message in enumerate(objects(self.body.get("messages"))):
            placed = [
                Placed(index, f"messages.{index}.content.{i}", block)
                for i, block in enumerate(blocks_of(message.get("content")))
            ]
            if merged and merged[-1].role == message["role"]:
                merged[-1].blocks.extend(placed)
            else:
                merged.append(Spoken(message["role"], index, placed))
        return merged

    @property
    def thinking(self) -> str:
        """The kind of thinking that is asked for; ``disabled`` if none is."""
        return str((as_object(self.body.get("thinking")) or {}).get("type", "disabled"))

    @property
    def is_thinking(self) -> bool:
        """True if the answer may start with thinking."""
        return self.thinking != "disabled"
